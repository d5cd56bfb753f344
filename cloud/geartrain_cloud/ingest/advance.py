"""Clocks of sources that have no live member in a partition: they follow those that have one.

Applied before a group is sealed. A flow's clock of a source is the minimum over its partitions, and a
stream's is the minimum over the sources above it. So a clock for which nobody is waited would hold both up
for ever. Guarantees: such a clock moves only by logged `advance` entries, and never back. It never passes
the lowest clock of that source in the partitions where it has live members. Where it has none at all, it
never passes the lowest clock of the flow's other sources that have some and have not ended, so it never
ends by following. If there is none to follow, it stands still. A partition that no ingest has taken yet has
no members to wait for, and itself holds the flow's clocks at minus infinity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from geartrain.errors.reason import make_reason
from geartrain.ports import Clock
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.group import Group, Partition, Place
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.ports import NO_SOURCE, Entry, EntryKind, LedgerStore

INTERVAL_S = 0.2
"""How often such a clock moves at most: each time is an entry of each of these partitions."""

Least = dict[str, int]
"""By source, the least clock of the partitions where it has live members."""


class Advance:
    """The clocks of one ingest's `partitions`, of `total` that a flow has."""

    def __init__(
        self, partitions: Mapping[Place, Partition], total: int, owned: Collection[int], clock: Clock
    ) -> None:
        self._total, self._owned, self._clock = total, owned, clock
        self._flows: dict[str, list[Partition]] = {}
        for partition in partitions.values():
            self.add(partition)
        self._foreign: dict[str, Least] = {}
        self._moved_s: dict[str, float] = {}

    def add(self, partition: Partition) -> None:
        """Move the clocks of one more partition."""
        self._flows.setdefault(partition.flow, []).append(partition)

    def forget(self, flow: str) -> None:
        """Move no clock of a flow that has ended."""
        for known in (self._flows, self._foreign, self._moved_s):
            known.pop(flow, None)

    @property
    def is_needed(self) -> bool:
        """Whether there is more than one clock in some flow."""
        return self._total > 1 or any(len(p.clocks) > 1 for several in self._flows.values() for p in several)

    @property
    def has_others(self) -> bool:
        """Whether other ingests have partitions, and a clock of ours may have to follow them."""
        return len(self._owned) < self._total and any(
            not clock.has_live
            for several in self._flows.values()
            for partition in several
            for clock in partition.clocks.values()
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
        return any(self._targets(flow) for flow in self._flows)

    def apply(self, group: Group) -> None:
        """Move the clocks that are due, all of one partition by one entry in `group`."""
        if not self.is_needed:
            return
        for flow, several in self._flows.items():
            targets = self._targets(flow)
            if not targets:
                continue
            self._moved_s[flow] = self._clock.monotonic_s()
            for partition in several:
                moved = [s for s, target in targets.items() if partition.clocks[s].advance(target)]
                if moved:
                    reason = make_reason(EntryCode.OTHERS_FOLLOWED, sources=moved)
                    group.append_note(partition, EntryKind.ADVANCE, ("", b"", 0), reason)

    def _targets(self, flow: str) -> Least:
        """By source, where its clocks without live members are to go now: those of which one would move."""
        several, least = self._flows[flow], self._least(flow)
        going = [clock for clock in least.values() if clock < END_OF_TIME]
        waited_s = self._clock.monotonic_s() - self._moved_s.get(flow, float("-inf"))
        targets: Least = {}
        for source in several[0].clocks:
            target = least.get(source, min(going, default=START_OF_TIME))
            still = [p.clocks[source].value for p in several if not p.clocks[source].has_live]
            is_due = waited_s >= INTERVAL_S or target == END_OF_TIME
            if is_due and still and target > min(still):
                targets[source] = target
        return targets

    def _least(self, flow: str) -> Least:
        found = dict(self._foreign.get(flow, {}))
        for partition in self._flows[flow]:
            for source, clock in partition.clocks.items():
                if clock.has_live:
                    found[source] = min(found.get(source, clock.value), clock.value)
        return found


def _least_live(
    newest: Iterable[Entry], live: Collection[tuple[str, str, str]], total: int, owned: Collection[int]
) -> dict[str, Least]:
    """By flow, the least clocks of other ingests' partitions, of the sources that have live members there."""
    members = {
        (flow, source, partition_of(device, total)) for flow, source, device in live if source != NO_SOURCE
    }
    entries = {(entry.flow, entry.partition): entry for entry in newest}
    found: dict[str, Least] = {}
    for flow, source, partition in members:
        entry = entries.get((flow, partition))
        if partition not in owned and entry is not None:
            clock, least = entry.clock([source]), found.setdefault(flow, {})
            least[source] = min(least.get(source, clock), clock)
    return found
