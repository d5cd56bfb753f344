"""The rules of what follows the roster, at every commit of the ledger: members, revisions, the end of a flow.

They check what a living roster rests on. Guarantees: a device is assigned only where it is no member, and
leaves only where it is one. What it has claimed is given back before it leaves. The revisions of a partition
go up by one. Behind the last entry of a partition of an ended flow there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain.graph.graph import CLAIMS
from geartrain_cloud.ports import Entry, EntryKind, LedgerChange
from geartrain_simulation.machine.violation import Breach

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
        self.revisions: dict[tuple[str, int], int] = {}
        """By (flow, partition), the newest, where there is another than the first."""
        self.claim = False
        """Whether the devices of all flows may claim state."""
        self._gave_back: set[tuple[str, str]] = set()
        """(flow, device) of which no claim is open, since the device leaves."""

    def committed(self, change: LedgerChange) -> None:
        """Check the entries that the ledger has just made durable."""
        for entry in change.entries:
            self._take(entry)

    def have_brought(self, flow: str, partitions: int, number: int) -> bool:
        """Whether each partition of a flow has brought a revision."""
        return all(self.revisions.get((flow, part), 1) >= number for part in range(partitions))

    def check(self, wanted: Collection[Member], ended: Collection[str]) -> None:
        """Compare the members with those that the roster wants in the end, and the ended flows with its."""
        if self.all != set(wanted):
            late, more = sorted(set(wanted) - self.all), sorted(self.all - set(wanted))
            self._breach("roster", f"not assigned: {late[:3]}; still members: {more[:3]}")
        if strangers := {flow for flow, _ in self.ended} - set(ended):
            self._breach("roster", f"{sorted(strangers)} have ended, though nobody said so")

    def check_revisions(self, wanted: Mapping[tuple[str, int], int]) -> None:
        """Compare the revisions of the partitions of living flows with those that the roster wants."""
        found = {place: self.revisions.get(place, 1) for place in wanted}
        if found != wanted:
            self._breach("revisions", f"the log has {found}, and the roster wants {dict(wanted)}")

    def _take(self, entry: Entry) -> None:
        place, member = (entry.flow, entry.partition), (entry.flow, entry.source, entry.device)
        what = f"entry {entry.number} of {place}: {entry.kind.name} {entry.source} {entry.device}"
        if place in self.ended:
            self._breach("ended", f"{what} stands behind the last one")
        if entry.kind is EntryKind.REVISION:
            if entry.seq != self.revisions.get(place, 1) + 1:
                self._breach("revisions", f"{what} {entry.seq} follows {self.revisions.get(place, 1)}")
            self.revisions[place] = entry.seq
        elif entry.kind is EntryKind.ENDED:
            self.ended.add(place)
            self.all = {one for one in self.all if one[0] != entry.flow}
        elif entry.kind is EntryKind.ASSIGNED:
            if member in self.all:
                self._breach("moves", f"{what}, which is a member")
            self.all.add(member)
            self._gave_back.discard((entry.flow, entry.device))
        elif entry.kind is EntryKind.CROSSING and entry.channel == CLAIMS:
            self._gave_back.add((entry.flow, entry.device))
        elif entry.kind is EntryKind.ROWS:
            self._gave_back.discard((entry.flow, entry.device))
        elif entry.kind in _OF_MEMBERS:
            if member not in self.all:
                self._breach("moves", f"{what}, which is no member")
            if entry.kind is EntryKind.RETIRED:
                self.all.discard(member)
                self._check_given_back(entry, what)

    def _check_given_back(self, entry: Entry, what: str) -> None:
        """A device that leaves a flow has no claim open any more."""
        place = entry.flow, entry.device
        stays = any((flow, device) == place for flow, _, device in self.all)
        if self.claim and not stays and place not in self._gave_back:
            self._breach("given back", f"{what}: what it has claimed stays with it")
