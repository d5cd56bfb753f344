"""What ingest is to follow, taken from the roster, and what the log must say before it does.

Beside the way into the log. Guarantees: what holds from which entry on is in the log alone. What the roster
says and the log does not say yet is a list of moves, a pure function of both. So a crash between a change of
the roster and its entries costs nothing: the next start finds the same moves. A roster that cannot be read
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS, FollowedFlow
from geartrain_cloud.log.roster import RosterRow
from geartrain_cloud.ports import EntryKind

INTERVAL_S = 0.2
"""How often ingest looks whether the roster has changed."""

Members = Mapping[str, Collection[tuple[str, str]]]
"""By flow, the (device, source) that the log names, with NO_SOURCE for a device that has none."""


class Roster(Protocol):
    """Where the roster comes from."""

    async def after(self, serial: int) -> Sequence[RosterRow]:
        """What changed after `serial`, the oldest change first; raises `LedgerError`."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """Something that the log must say: a device has a source from here on, or has it no more, or the flow has
    ended. Or a partition goes over to the revision `number`. With NO_SOURCE the device comes or goes as one
    that has none.
    """

    kind: EntryKind
    flow: str
    device: str = ""
    source: str = ""
    partition: int = 0
    number: int = 0


@dataclass(slots=True)
class Followed:
    """What the roster wants, as far as it could be read.

    serial: of the newest change that was taken; flows: those that live; ended: those that do not; unusable:
    why rows could not be used, until somebody has taken the sentences.
    """

    serial: int = 0
    flows: dict[str, FollowedFlow] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    unusable: list[str] = field(default_factory=list)
    failure: str = ""

    def take(self, rows: Sequence[RosterRow]) -> None:
        """Take changes. The sources and channels of an instance stay: a later revision may bring more."""
        for row in rows:
            self.serial = max(self.serial, row.serial)
            if row.document is None:
                self.unusable.append(row.why)
            elif row.document.ended:
                self.flows.pop(row.instance, None)
                self.ended.add(row.instance)
            elif row.instance not in self.ended:
                self._take(row.instance, FollowedFlow.of(row.document))

    def _take(self, instance: str, flow: FollowedFlow) -> None:
        held = self.flows.get(instance)
        if held is None or _goes_on(held, flow):
            self.flows[instance] = flow
            return
        self.flows[instance] = _with_members(held, flow)
        self.unusable.append(
            f"roster of {instance}: its sources or channels have changed, which only a new instance may: its "
            "devices were taken, and nothing else"
        )

    def fail(self, why: str) -> bool:
        """Note that the roster cannot be read, or ("") that it can; whether that is to be said."""
        is_new = bool(why) and why != self.failure
        self.failure = why
        if is_new:
            self.unusable.append(why)
        return is_new

    def take_unusable(self) -> list[str]:
        """The sentences that nobody has said yet."""
        said, self.unusable = self.unusable, []
        return said


def crossings(logged: Mapping[tuple[str, int], int], flows: Mapping[str, FollowedFlow]) -> list[Move]:
    """The revisions that partitions lack, in order; logged: by (flow, partition), the newest."""
    return [
        Move(EntryKind.REVISION, name, partition=index, number=number)
        for (name, index), newest in sorted(logged.items())
        if name in flows
        for number in range(newest + 1, flows[name].revision + 1)
    ]


def moves(
    members: Members, flows: Mapping[str, FollowedFlow], ended: Collection[str], ours: Collection[str]
) -> list[Move]:
    """What the log must say, so that its members are just those that `flows` has.

    members: of each flow that the log has entries of and that has not ended there; flows: that live, by the
    roster; ended: that do not; ours: the devices whose partitions this ingest has.
    """
    found: list[Move] = []
    for name in sorted(members.keys() | flows.keys()):
        if name in ended:
            found += [Move(EntryKind.ENDED, name)] if name in members else []
            continue
        if name not in flows:
            continue  # its row cannot be read, or is gone: nobody has said that it is over
        known = set(members.get(name, ()))
        wanted = {(device, source) for device, source in flows[name].memberships() if device in ours}
        # Who comes first: a clock goes on without those that leave, and a device that exchanges its sources
        # is a member all along.
        found += [Move(EntryKind.ASSIGNED, name, *member) for member in sorted(wanted - known)]
        found += [Move(EntryKind.RETIRED, name, *member) for member in sorted(known - wanted)]
    return found


def _goes_on(held: FollowedFlow, wanted: FollowedFlow) -> bool:
    """Whether a flow may become another one while it lives: with the sources and channels that it has. Others
    come with a later revision alone.
    """
    if held.bounded != wanted.bounded or not held.sources.keys() <= wanted.sources.keys():
        return False
    names = [(one.channels.keys(), one.sources.keys()) for one in (held, wanted)]
    if wanted.revision == held.revision and names[0] != names[1]:
        return False
    return all(name in SYSTEM_CHANNELS or _keeps_meaning(held, wanted, name) for name in held.channels)


def _keeps_meaning(held: FollowedFlow, wanted: FollowedFlow, name: str) -> bool:
    """Whether a channel may become what it is in `wanted` while its flow lives. Its records get another type
    with another revision, which takes those of before; back from one that was never in force, it takes none.
    """
    if name not in wanted.channels or sorted(held.channels[name]) != sorted(wanted.channels[name]):
        return False
    was, now = held.schemas.get(name, ""), wanted.schemas.get(name, "")
    if was == now:
        return held.partitioned_by.get(name) == wanted.partitioned_by.get(name)
    return held.revision != wanted.revision and (wanted.takes(name, was) or held.takes(name, now))


def _with_members(held: FollowedFlow, wanted: FollowedFlow) -> FollowedFlow:
    sources = {source: wanted.sources.get(source, ()) for source in held.sources}
    return replace(held, devices=wanted.devices, sources=sources)
