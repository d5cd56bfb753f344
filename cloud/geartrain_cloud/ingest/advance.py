"""Clocks of partitions in which no device is live: they follow the clocks of the other partitions.

Applied before a group is sealed. A flow's clock is the minimum of its partitions' clocks, so a partition
without a live device would hold it up for ever. Guarantees: such a clock moves only by logged `advance`
entries, and never back. It never passes the lowest clock of those partitions of the channel that have live
devices. If no partition has one, it stands still. A partition that no ingest has taken yet has no devices to
wait for, and itself holds the flow's clock at minus infinity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from geartrain.ports import Clock
from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.ingest.group import Group, Partition, Place
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.ports import Entry, EntryKind, LedgerStore

INTERVAL_S = 0.2
"""How often such a clock moves at most: each time is an entry of each of these partitions."""

Channel = tuple[str, str]


class Advance:
    """The clocks of one ingest's `partitions`, of `total` that a channel has."""

    def __init__(self, partitions: Mapping[Place, Partition], total: int, clock: Clock) -> None:
        self._total, self._clock = total, clock
        self._channels: dict[Channel, list[Partition]] = {}
        for (flow, channel, _), partition in partitions.items():
            self._channels.setdefault((flow, channel), []).append(partition)
        self._owned = {number for _, _, number in partitions}
        self._foreign: dict[Channel, int] = {}
        self._moved_s: dict[Channel, float] = {}

    @property
    def is_needed(self) -> bool:
        """Whether there is more than one partition."""
        return self._total > 1

    @property
    def has_others(self) -> bool:
        """Whether other ingests have partitions, and one of ours may have to follow them."""
        return len(self._owned) < self._total and any(
            not p.clock.has_live for several in self._channels.values() for p in several
        )

    async def look(self, ledger: LedgerStore) -> None:
        """Learn how far the partitions of other ingests are; raises `LedgerError`."""
        assigned, excluded = await ledger.devices(), await ledger.excluded()
        self._foreign = _least_live(
            await ledger.last_entries(), set(assigned) - set(excluded), self._total, self._owned
        )

    @property
    def is_due(self) -> bool:
        """Whether `apply` would move a clock."""
        return any(self._target(channel) is not None for channel in self._channels)

    def apply(self, group: Group) -> None:
        """Move the clocks that are due, each by an entry in `group`."""
        if not self.is_needed:
            return
        for channel, several in self._channels.items():
            target = self._target(channel)
            if target is None:
                continue
            self._moved_s[channel] = self._clock.monotonic_s()
            for partition in several:
                if partition.clock.advance(target):
                    detail = "no device of the partition is live: it follows the others"
                    group.append_note(partition, EntryKind.ADVANCE, ("", b"", 0), detail)

    def _target(self, channel: Channel) -> int | None:
        """Where the clocks of a channel's partitions without a live device are to go now, if they move."""
        several = self._channels[channel]
        live = [p.clock.value for p in several if p.clock.has_live]
        if channel in self._foreign:
            live.append(self._foreign[channel])
        still = [p.clock.value for p in several if not p.clock.has_live]
        if not live or not still or min(live) <= min(still):
            return None
        waited_s = self._clock.monotonic_s() - self._moved_s.get(channel, float("-inf"))
        return min(live) if waited_s >= INTERVAL_S or min(live) == END_OF_TIME else None


def _least_live(
    newest: Iterable[Entry], live: Collection[tuple[str, str, str]], total: int, owned: Collection[int]
) -> dict[Channel, int]:
    """By (flow, channel), the least clock of other ingests' partitions that have live devices."""
    places = {(flow, channel, partition_of(device, total)) for flow, channel, device in live}
    found: dict[Channel, int] = {}
    for entry in newest:
        place, channel = (entry.flow, entry.channel, entry.partition), (entry.flow, entry.channel)
        if entry.partition not in owned and place in places:
            found[channel] = min(found.get(channel, entry.clock), entry.clock)
    return found
