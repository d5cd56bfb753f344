"""Devices that get a source more with a revision of their steps, and in some runs lose it by a later one,
while all else goes wrong.

The world of revisions, in which one of them brings a second source. Some devices have it long before others
do, or long after. No device comes to the end of its readings before it runs the last revision. Guarantees: as
there, and the log has each record of the second source once that was read before the device has gone over to
the revision without it. All of these lie above the clock that the source has from its revision on. No device
is taken to lack it before that, and each is from there on.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from msgspec.structs import replace as with_fields

from geartrain.planning import Plan
from geartrain.records.batch import origin_name
from geartrain_cloud.log.entry_reasons import number_of
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import EntryKind
from geartrain_edge.settings import AgentSettings
from geartrain_simulation.fleet.readings import doors_of
from geartrain_simulation.fleet.revision_fleet import DOORS, SOURCE, RevisionFleet
from geartrain_simulation.fleet.revision_flow import Form, Leg, doors_beside, draw_forms
from geartrain_simulation.stores.segments import Row


class SourceFleet(RevisionFleet):
    """One run. No life runs a former revision: it would never come to an end."""

    stale_p = 0.0

    def _drawn_forms(self, seed: int) -> list[Form]:
        forms = draw_forms(seed)
        self._since, self.until = Random(f"{seed}/sources").randrange(2, len(forms) + 1), len(forms) + 1
        goes = Random(f"{seed}/sources that go")
        if len(forms) > 2 and goes.random() < 0.6:
            self._since = min(self._since, len(forms) - 1)
            self.until = goes.randrange(self._since + 1, len(forms) + 1)
        has = range(self._since, self.until)
        return [replace(form, doors=number in has) for number, form in enumerate(forms, 1)]

    def _document_of(self, number: int) -> RosterDocument:
        document = super()._document_of(number)
        if number < self._since:
            return document
        both = SOURCE, DOORS
        devices: dict[str, tuple[str, ...]] = {device.name: both for device in self.devices}
        return with_fields(document, sources=both, devices=devices, since={DOORS: self._since})

    def _turn(self, node: str, settings: AgentSettings) -> tuple[AgentSettings, Plan]:
        found, plan = super()._turn(node, settings)
        self.world.nodes[node].comes_to_ends = found.revision == len(self.versions)
        return found, plan

    def _expected(self) -> dict[tuple[str, str], dict[str, list[Row]]]:
        found, source = super()._expected(), doors_beside(self.source)
        for (device, _), channels in found.items():
            behind = next((leg for leg in self.legs[device] if leg.number >= self.until), None)
            self._check_waited_for(device, behind)
            # It may go from before the source to where all is as before, which is no crossing.
            had = any(leg.number >= self._since for leg in self.legs[device])
            if not had:
                self.checkers.stands.add(DOORS)
            rows = [
                Row(time, origin_name(DOORS, device), number, b"", (reading.sensor, reading.level))
                for number, (time, reading) in enumerate(doors_of(source, device))
                if had and (behind is None or number < behind.doors)
            ]
            channels.update({DOORS: rows} if rows else {})
        return found

    def _check_waited_for(self, device: str, behind: Leg | None) -> None:
        """That a device is said to lack the source once it has gone over to a revision without it, and not
        before. What a new epoch announces may say so right before the crossing that it brings.
        """
        ran, lacks, early = 0, False, 0
        for entry in self._partition_of(device):
            if entry.device != device:
                continue
            ran = number_of(entry.reason) or ran
            if early and ran < self.until:
                break
            early = 0
            if entry.kind is EntryKind.LACKS and entry.source == DOORS:
                lacks, early = True, entry.number if ran < self.until else 0
        if early:
            self.checkers.breach("waited for", f"entry {early}: {device} is said to lack what comes to it")
        if behind is not None and not lacks:
            self.checkers.breach("waited for", f"{device} has gone over, and is waited for")
