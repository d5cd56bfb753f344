"""The rules of membership, at every commit of the ledger: who is assigned until when, and when a flow ends.

They check what a living roster rests on. Guarantees: a device is assigned only where it is no member, and
leaves only where it is one. Behind the last entry of a partition of an ended flow there is no other.
"""

from __future__ import annotations

from collections.abc import Collection

from geartrain_cloud.ports import Entry, EntryKind, LedgerChange
from geartrain_simulation.checkers.violation import Breach

Member = tuple[str, str, str]
"""(flow, source, device)."""
_OF_MEMBERS = (EntryKind.RETIRED, EntryKind.EXCLUDED, EntryKind.LACKS, EntryKind.READMITTED)


class Members:
    """The members of each source, by the log alone."""

    def __init__(self, breach: Breach) -> None:
        self._breach = breach
        self.all: set[Member] = set()
        self.ended: set[tuple[str, int]] = set()
        """(flow, partition) with a last entry."""

    def committed(self, change: LedgerChange) -> None:
        """Check the entries that the ledger has just made durable."""
        for entry in change.entries:
            self._take(entry)

    def check(self, wanted: Collection[Member], ended: Collection[str]) -> None:
        """Compare the members with those that the roster wants in the end, and the ended flows with its."""
        if self.all != set(wanted):
            late, more = sorted(set(wanted) - self.all), sorted(self.all - set(wanted))
            self._breach("roster", f"not assigned: {late[:3]}; still members: {more[:3]}")
        if strangers := {flow for flow, _ in self.ended} - set(ended):
            self._breach("roster", f"{sorted(strangers)} have ended, though nobody said so")

    def _take(self, entry: Entry) -> None:
        place, member = (entry.flow, entry.partition), (entry.flow, entry.source, entry.device)
        what = f"entry {entry.number} of {place}: {entry.kind.name} {entry.source} {entry.device}"
        if place in self.ended:
            self._breach("ended", f"{what} stands behind the last one")
        if entry.kind is EntryKind.ENDED:
            self.ended.add(place)
            self.all = {one for one in self.all if one[0] != entry.flow}
        elif entry.kind is EntryKind.ASSIGNED:
            if member in self.all:
                self._breach("moves", f"{what}, which is a member")
            self.all.add(member)
        elif entry.kind in _OF_MEMBERS:
            if member not in self.all:
                self._breach("moves", f"{what}, which is no member")
            if entry.kind is EntryKind.RETIRED:
                self.all.discard(member)
