"""The rules of the clock, at every commit of the ledger: it never goes back, nor runs ahead of a record.

They check I5, on which windows rest. A clock stands at or below the event time of every record that a spool
has taken in and the log lacks. Late records and those of excluded devices are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.ports import Entry, EntryKind, LedgerChange
from geartrain_simulation.checkers.accepted import Accepted
from geartrain_simulation.checkers.violation import Breach
from geartrain_simulation.stores.stores import SpoolBook

Place = tuple[str, str, int]
"""(flow, channel, partition)."""
_TIMELESS = (DEAD_LETTERS, LATE)
"""Channels whose records lie anywhere in time."""


class Clocks:
    """The clock of every partition, and the devices that it waits for."""

    def __init__(
        self,
        breach: Breach,
        spools: Mapping[tuple[str, str], SpoolBook],
        accepted: Mapping[tuple[str, str], Accepted],
        durable: Callable[[str, str, bytes], int],
    ) -> None:
        """`durable`: the last seq of (device, flow, epoch) that the ledger holds."""
        self._breach, self._spools, self._accepted, self._durable = breach, spools, accepted, durable
        self.values: dict[Place, int] = {}
        self._live: dict[Place, set[str]] = {}
        self._numbers: dict[Place, int] = {}
        self.excused: set[str] = set()
        """Devices that were excluded once, or have lost a spool: their records may be overtaken."""

    def committed(self, change: LedgerChange) -> None:
        """Check the entries that the ledger has just made durable."""
        moved: dict[Place, Entry] = {}
        for entry in change.entries:
            place = (entry.flow, entry.channel, entry.partition)
            before = self.values.get(place, START_OF_TIME)
            if entry.number != self._numbers.get(place, 0) + 1:
                self._breach("positions", f"entry {entry.number} of {place} comes out of turn")
            if entry.clock < before:
                self._breach("clock", f"entry {entry.number} of {place} sets it back to {entry.clock}")
            if entry.clock > before:
                moved[place] = entry
            self._numbers[place], self.values[place] = entry.number, entry.clock
            self._join(place, entry)
        for place, entry in moved.items():
            self._behind_all(place, entry)

    def _join(self, place: Place, entry: Entry) -> None:
        live = self._live.setdefault(place, set())
        if entry.kind is EntryKind.ROWS and entry.device not in live:
            detail = f"entry {entry.number} of {place} has rows of {entry.device}, which is excluded"
            self._breach("readmitted", detail)
        if entry.kind in (EntryKind.ASSIGNED, EntryKind.READMITTED):
            live.add(entry.device)
        elif entry.kind is EntryKind.EXCLUDED:
            live.discard(entry.device)
            self.excused.add(entry.device)

    def _behind_all(self, place: Place, entry: Entry) -> None:
        flow, channel, _ = place
        if channel in _TIMELESS:
            return
        for device in sorted(self._live.get(place, set()) - self.excused):
            spool, accepted = self._spools.get((device, flow)), self._accepted.get((device, flow))
            if spool is None or accepted is None:
                continue
            done = self._durable(device, flow, spool.epoch)
            for seq in spool.batches:
                where, time = accepted.oldest(spool.epoch, seq)
                if seq > done and where == channel and time < entry.clock:
                    self._breach(
                        "clock",
                        f"entry {entry.number} of {place} sets it to {entry.clock}, while batch {seq} of "
                        f"{device} is not in the log and has a row of {time}",
                    )
