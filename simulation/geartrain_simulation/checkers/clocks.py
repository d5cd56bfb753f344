"""The rules of the clocks, at every commit of the ledger: none goes back, nor runs ahead of a record.

They check I5, on which windows rest. The clock of a channel is the least of the sources above it. It stands
at or below each record that a spool has taken in for the channel and the log lacks. A device that is assigned
late holds it where it stands, and is waited for as long as one that was there from the start. Late records
and those of excluded and retired devices are left out. A source ends only by a device that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.ports import NO_SOURCE, Entry, EntryKind, LedgerChange
from geartrain_simulation.checkers.accepted import Accepted
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.stores import SpoolBook

Place = tuple[str, int]
"""(flow, partition)."""
TIMELESS = (DEAD_LETTERS, LATE, STATE, CLAIMS)
"""Channels whose records lie anywhere in time."""
COMMIT_S = 1.5
"""Virtual seconds by which an entry may be committed after what it says."""


class Clocks:
    """The clocks of every partition, and the members of each source that they wait for."""

    def __init__(
        self,
        breach: Breach,
        spools: Mapping[tuple[str, str], SpoolBook],
        accepted: Mapping[tuple[str, str], Accepted],
        durable: Callable[[str, str, bytes], int],
        above: Mapping[str, Collection[str]],
    ) -> None:
        """`durable`: the last seq of (device, flow, epoch) that the ledger holds; above: the sources of each
        channel.
        """
        self._breach, self._spools, self._accepted, self._durable = breach, spools, accepted, durable
        self._above = above
        self.values: dict[Place, Mapping[str, int]] = {}
        self._live: dict[tuple[str, str], dict[str, set[int]]] = {}
        self._numbers: dict[Place, int] = {}
        self.excused: set[str] = set()
        """Devices that were excluded once, or have lost a spool: their records may be overtaken."""
        self.latecomers: set[str] = set()
        """Devices that were assigned when a clock had moved: so may theirs."""
        self._floors: dict[tuple[str, str, str], int] = {}
        self._assigned_s: dict[tuple[str, str], float] = {}
        self._patience: tuple[Callable[[], float], float] | None = None

    def waits(self, now_s: Callable[[], float], least_s: float) -> None:
        """Check that no device is excluded within `least_s` seconds of its assignment, by `now_s`."""
        self._patience = now_s, least_s

    def committed(self, change: LedgerChange) -> None:
        """Check the entries that the ledger has just made durable."""
        moved: dict[Place, Entry] = {}
        for entry in change.entries:
            place = (entry.flow, entry.partition)
            before = self.values.get(place, {})
            if entry.number != self._numbers.get(place, 0) + 1:
                self._breach("positions", f"entry {entry.number} of {place} comes out of turn")
            for source in sorted(before.keys() | entry.clocks.keys()):
                clock = entry.clocks.get(source, START_OF_TIME)
                if clock < before.get(source, START_OF_TIME):
                    detail = f"entry {entry.number} of {place} sets that of {source} back to {clock}"
                    self._breach("clock", detail)
                if before.get(source) != END_OF_TIME == clock and not self._live.get((entry.flow, source)):
                    self._breach("clock", f"entry {entry.number} of {place} ends {source}, which nobody has")
            if entry.clocks != before:
                moved[place] = entry
            self._numbers[place], self.values[place] = entry.number, entry.clocks
            self._join(entry)
        for place, entry in moved.items():
            self._behind_all(place, entry)

    def _join(self, entry: Entry) -> None:
        if entry.kind is EntryKind.ROWS and not self._is_live(entry.flow, entry.device, entry.channel):
            detail = f"entry {entry.number} of {entry.channel} has rows of {entry.device}, which is excluded"
            self._breach("readmitted", detail)
        live = self._live.setdefault((entry.flow, entry.source), {})
        self._check_patience(entry)
        if entry.kind in (EntryKind.ASSIGNED, EntryKind.READMITTED):
            live.setdefault(entry.device, set()).add(entry.partition)
            floor = self._floors[entry.device, entry.flow, entry.source] = entry.clock([entry.source])
            if floor > START_OF_TIME:
                self.latecomers.add(entry.device)
        elif entry.kind is EntryKind.ENDED:
            for (flow, _), several in self._live.items():
                if flow == entry.flow:
                    several.clear()
        elif entry.kind in (EntryKind.EXCLUDED, EntryKind.LACKS, EntryKind.RETIRED):
            live.pop(entry.device, None)
            if entry.kind is EntryKind.EXCLUDED:
                self.excused.add(entry.device)

    def _check_patience(self, entry: Entry) -> None:
        if self._patience is None:
            return
        (now_s, least_s), place = self._patience, (entry.device, entry.flow)
        if entry.kind is EntryKind.ASSIGNED:
            self._assigned_s[place] = now_s()
        elif entry.kind is EntryKind.EXCLUDED and place in self._assigned_s:
            waited_s = now_s() - self._assigned_s[place]
            if waited_s < least_s - COMMIT_S:
                detail = f"{entry.device} is excluded {waited_s:.1f} s after it was assigned to {entry.flow}"
                self._breach("patience", detail)

    def _is_live(self, flow: str, device: str, channel: str) -> bool:
        """Whether the clock of a source above a channel waits for a device, or nobody waits for it as it has
        no source: such a device has dead letters all the same.
        """
        sources = self._sources(channel)
        above = (NO_SOURCE, *sources) if channel in SYSTEM_CHANNELS else sources
        return any(device in self._live.get((flow, source), ()) for source in above)

    def _sources(self, channel: str) -> Collection[str]:
        if channel not in self._above:
            self._breach("channels", f"rows stand in {channel!r}, which no plan has")
        return self._above[channel]

    def _behind_all(self, place: Place, entry: Entry) -> None:
        flow, partition = place
        members = {
            device
            for source in {source for above in self._above.values() for source in above}
            for device, partitions in self._live.get((flow, source), {}).items()
            if partition in partitions
        }
        for device in sorted(members - self.excused):
            spool, accepted = self._spools.get((device, flow)), self._accepted.get((device, flow))
            if spool is None or accepted is None:
                continue
            done = self._durable(device, flow, spool.epoch)
            for seq in spool.batches:
                channel, time = accepted.oldest(spool.epoch, seq)
                if seq <= done or not channel or channel in TIMELESS:
                    continue
                if max(time, self._floor(device, flow, channel)) < (
                    clock := entry.clock(self._sources(channel))
                ):
                    self._breach(
                        "clock",
                        f"entry {entry.number} of {place} sets {channel} to {clock}, while batch {seq} of "
                        f"{device} is not in the log and has a row of {time}",
                    )

    def _floor(self, device: str, flow: str, channel: str) -> int:
        """Where the clocks above a channel stood when they began to wait for a device: the highest of them,
        as a row does not say which source it came from.
        """
        held = [s for s in self._sources(channel) if device in self._live.get((flow, s), ())]
        return max((self._floors[device, flow, source] for source in held), default=END_OF_TIME)
