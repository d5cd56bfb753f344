"""Devices that take a step and leave it again, while an update has that step begin empty.

The world of claims, with one event more: the roster names a revision that drops what the totals keep. The
host forgets it where the log has brought that. Each device is told some time later, and may die over it. So
the update comes amid claims, and while cells are on their way up or down. Guarantees: the rules there hold,
but that each total begins anew once, at a place that the log alone tells. What a device has kept before the
update and leaves behind it is set aside, cell by cell.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from msgspec.structs import replace as with_fields

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, STATE
from geartrain.planning import Plan
from geartrain.ports import SpoolCommit
from geartrain.records.batch import origin_name
from geartrain.records.codes import Code
from geartrain.state.claims import ASKS, HAS, LOST
from geartrain.state.moving import said_of
from geartrain_cloud.log.entry_reasons import EntryCode, number_of, runs_of
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import Entry, EntryKind
from geartrain_edge.agent.crossing import CLAIM, LastClaim
from geartrain_edge.settings import AgentSettings
from geartrain_simulation.fleet.claiming_fleet import ClaimingFleet
from geartrain_simulation.fleet.claiming_flow import READINGS, SUMS, TOTALS, rows_of_columns
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Outcome
from geartrain_simulation.fleet.revision_fleet import CROSSING_POINTS
from geartrain_simulation.fleet.revision_flow import records_of
from geartrain_simulation.fleet.troubles import INGEST, LOG_POINTS
from geartrain_simulation.machine.world import Node
from geartrain_simulation.stores.rosters import document_of
from geartrain_simulation.stores.spools import SpoolBook

ANEW = 2
"""The revision with which the totals begin empty."""
_BEHIND = (ASKS, HAS, STATE, STATE, "")
"""Right behind which commit of a device the update comes, "" for any time: a claim, the cells that have come
for one, or the cells that leave.
"""
_LATEST_S = 25.0
_LOOK_S = 0.1
Cell = tuple[bytes, bytes]
"""The key and what is kept of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where what a device's totals keep goes: behind this entry they begin anew; how: for the counters."""

    entry: int
    how: str


class DroppingFleet(ClaimingFleet):
    """One run. No code that keeps another type of state comes beside the update."""

    drops = (TOTALS,)
    next_code_p = 0.0

    def __init__(self, seed: int, behind: str | None = None) -> None:
        """behind: right behind which commit of a device the update comes, None for what the seed draws."""
        self._update = Random(f"{seed}/dropping")
        drawn = self._update.choice(_BEHIND)
        self._behind = drawn if behind is None else behind
        self._newest = dict[str, int]()
        self.met = Counter[str]()
        self._is_due = False
        super().__init__(seed)

    def _told(self, document: RosterDocument) -> RosterDocument:
        names = [device.name for device in self.devices]
        self._document = document_of([self._plan], document, names, READINGS)
        return self._document

    # What happens

    def _arrange(self) -> None:
        super()._arrange()
        in_s = _LATEST_S if self._behind else self._update.uniform(1, _LATEST_S)
        self.world.later(in_s, self._revise)

    def _agent_node(self, device: Device, node: str, book: SpoolBook) -> Node:
        made, inner = super()._agent_node(device, node, book), book.on_commit

        def committed(change: SpoolCommit) -> None:
            inner(change)
            leaves = any(channel == STATE for batch in change.batches for _, channel, _ in batch.rows)
            done = {LastClaim.of(change.state.get(CLAIM)).says, STATE if leaves else ""}
            if self._behind and self._behind in done:
                self.world.later(self._update.uniform(0, 0.5), self._revise)

        book.on_commit = committed
        return made

    def _revise(self) -> None:
        """The roster names the update, once."""
        if self._is_due:
            return
        self._is_due = True
        self.world.note("world", "revision", str(ANEW))
        self.roster.put(self.flow, with_fields(self._document, revision=ANEW))
        if self._update.random() < 0.4:
            point, nth = self._update.choice(LOG_POINTS), self._update.randint(1, 3)
            self.world.nodes[INGEST].kill_at_next(nth, point, power=self._update.random() < 0.5)
        self._wait()

    def _wait(self) -> None:
        """Tell the devices once the log has brought the update."""
        if not self.checkers.members.have_brought(self.flow, self._configs[INGEST].partitions, ANEW):
            self.world.later(_LOOK_S, self._wait)
            return
        for device in self.devices:
            late_s = self._update.choice((0.3, 2.0, 10.0))
            self.world.later(self._update.uniform(0, late_s), self._tell, device.name)

    def _tell(self, name: str) -> None:
        """A device hears of it; its agent is started again with that, and may die as it goes over."""
        self.world.note("world", "told", f"{name} {ANEW}")
        self._newest[name] = ANEW
        node = self.world.nodes[name]
        if self._update.random() < 0.4:
            point, nth = self._update.choice(CROSSING_POINTS), self._update.randint(1, 3)
            node.kill_at_next(nth, point, power=self._update.random() < 0.5)
        node.stop()

    def _next_cut(self, node: str, settings: AgentSettings) -> tuple[AgentSettings, Plan]:
        settings, plan = super()._next_cut(node, settings)
        number = self._newest.get(node, 1)
        drops = {TOTALS: ANEW} if number == ANEW else {}
        return with_fields(settings, revision=number, drops=drops), plan

    # The rules

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        outcome = super().run()
        return replace(outcome, counters={**outcome.counters, **self.met})

    def _check_tables(self) -> None:
        """The rows of the totals, and what was set aside, given where the log has each device begin anew."""
        if any(entry.reason.code == EntryCode.CROSSINGS_LOST for entry in self.ledger.all_entries()):
            return  # a crossing was damaged on a disk
        rows = [row for batch in self.host.tables.get(SUMS, ()) for row in rows_of_columns(batch)]
        refused = Counter[Cell]()
        for device in self.devices:
            place = self._place_of(device.name)
            self.met[f"anew {place.how}" if place else "never anew"] += 1
            records, chain = self._totals(device.name, place), set[tuple[str, int, int]]()
            name = origin_name(READINGS, device.name)
            found = sorted((row.number, *row.fields) for row in rows if row.name == name)
            if found != records:
                odd = (
                    [one for one in found if one not in records],
                    [one for one in records if one not in found],
                )
                detail = f"{device.name}: anew {place}: {len(found)} totals, {len(records)} due; {odd[0][:2]}"
                self.checkers.breach("anew once", f"{detail} in place of {odd[1][:2]}")
            chain.update((sensor, count, total) for _, sensor, count, total in records)
            for row in rows:
                sensor, count, total = row.fields
                if count < 0 and sensor.startswith(device.name) and (sensor, -count, total) not in chain:
                    self.checkers.breach("anew once", f"{device.name}: {row} is of no total")
            refused += self._kept_before(device.name)
        self.met["cells refused"] = refused.total()
        if (found_aside := self._set_aside()) != refused:
            more, fewer = (found_aside - refused).total(), (refused - found_aside).total()
            self.checkers.breach("set aside", f"{more} cells that are not due, and {fewer} that are lack")

    def _totals(self, name: str, place: Place | None) -> list[tuple[int, str, int, int]]:
        """What plain Python makes of a device's records: the number of each, its sensor, and what it makes of
        the count and the sum.
        """
        before, channels = set[int](), self._channels_of(READINGS, TOTALS)
        for entry in self._entries_of(name):
            if entry.channel in channels and (place is None or entry.number < place.entry):
                rows = [one.row for one in self.checkers.rows_of(entry)]
                before.update(row.number for row in rows if row.name == origin_name(READINGS, name))
        found, sums = list[tuple[int, str, int, int]](), dict[tuple[str, bool], tuple[int, int]]()
        for row, reading in records_of(self._source, name):
            at = reading.sensor, row.number in before
            count, total = sums.get(at, (0, 0))
            sums[at] = count + 1, total + reading.level
            found.append((row.number, reading.sensor, *sums[at]))
        return sorted(found)

    def _place_of(self, name: str) -> Place | None:
        """Where a device's totals begin anew: with the update, where the data centre has them then. Where the
        device has them, with its next crossing. So where they come to it by a claim of before, unless the
        crossing with which they come is of the update. None where no crossing comes any more.
        """
        holder, claim, crossed, brought = "cloud", 0, (0, 1), 0
        for entry in self._entries_of(name):
            if entry.kind is EntryKind.REVISION:
                brought = entry.number
                if holder == "cloud":
                    return (
                        self._behind_claim(name, brought, claim) if claim else Place(brought, "in the cloud")
                    )
            elif entry.kind in (EntryKind.JOINED, EntryKind.CROSSING):
                if brought:
                    return Place(entry.number, "with a crossing")
                crossed, claim = self._said(entry), 0
                holder = "device" if crossed[0] else "cloud"
            elif entry.channel == CLAIMS:
                claim = self._open(entry, claim)
        return None

    def _behind_claim(self, name: str, brought: int, claim: int) -> Place:
        """The same, of a device that has claimed and not said yet what becomes of it."""
        given_up, crossing = Place(brought, "amid a claim"), Place(brought, "")
        is_there = False
        for entry in self._entries_of(name):
            if entry.number <= brought:
                continue
            if entry.kind is EntryKind.CROSSING:
                if entry.reason.code == EntryCode.FRESH_SPOOL:
                    return given_up
                if is_there:
                    return Place(entry.number, "behind a claim")
                revision = self._said(entry)[1]
                crossing = Place(entry.number, "with a claim" if revision == ANEW else "")
            elif entry.channel == CLAIMS and not is_there:
                if entry.kind is EntryKind.LOSS or HAS not in self._says(entry):
                    if self._open(entry, claim) != claim:
                        return given_up
                    continue
                if crossing.how:
                    return crossing
                is_there = True
        return Place(1 << 62, "never behind a claim") if is_there else given_up

    def _open(self, entry: Entry, claim: int) -> int:
        """The claim that is open behind an entry of claims, 0 for none; claim: before it."""
        if entry.kind is EntryKind.LOSS:
            return 0
        for number, _, says, _ in self._fields(entry):
            if says == ASKS:
                claim = number
            elif says != LOST or number != claim:
                claim = 0
        return claim

    def _says(self, entry: Entry) -> set[str]:
        return {says for _, _, says, _ in self._fields(entry)}

    def _fields(self, entry: Entry) -> list[tuple[Any, ...]]:
        """Of the rows of an entry."""
        return [one.row.fields for one in self.checkers.rows_of(entry)]

    @staticmethod
    def _said(entry: Entry) -> tuple[bool, int]:
        """Whether a device has the totals behind an entry, and the revision that it runs."""
        runs = runs_of(entry.reason)
        return runs is not None and TOTALS in runs.cut, number_of(entry.reason) or 1

    def _kept_before(self, name: str) -> Counter[Cell]:
        """The cells of totals that a device has left behind the update, and had kept before."""
        found, brought = Counter[Cell](), False
        for entry in self._entries_of(name):
            brought |= entry.kind is EntryKind.REVISION
            for step, key, _, _, cell in self._fields(entry) if entry.channel == STATE else ():
                called, _, revision = said_of(step)
                found[key, cell] += brought and called == TOTALS and revision < ANEW
        return +found

    def _set_aside(self) -> Counter[Cell]:
        """The cells of totals that have become dead letters."""
        found = Counter[Cell]()
        for batch in self.host.tables.get(DEAD_LETTERS, ()):
            for row in rows_of_columns(batch):
                step, code, _, raw = row.fields
                if step == TOTALS and code == Code.STATE_NOT_TAKEN:
                    cell = json.loads(raw)
                    found[b64decode(cell["key"]), b64decode(cell["cell"])] += 1
        return found

    def _entries_of(self, name: str) -> Iterator[Entry]:
        """What the log has of a device, and of the update in its partition."""
        part = partition_of(name, self._configs[INGEST].partitions)
        for entry in self.ledger.all_entries():
            if entry.partition == part and (entry.device == name or entry.kind is EntryKind.REVISION):
                yield entry
