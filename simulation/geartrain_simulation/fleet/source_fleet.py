"""Devices that get a source more with a revision of their steps, while all else goes wrong.

The world of revisions, in which one of them brings a second source. Some devices have it long before others
do. No device comes to the end of its readings before it runs the last revision. Guarantees: as there, and the
log has each record of the second source once, above the clock that this has from its revision on. No device
is taken to lack it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from msgspec.structs import replace as with_fields

from geartrain.planning import Plan
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import EntryKind
from geartrain_edge.settings import AgentSettings
from geartrain_simulation.fleet.readings import doors_of
from geartrain_simulation.fleet.revision_fleet import SOURCE, RevisionFleet
from geartrain_simulation.fleet.revision_flow import Form, doors_beside, draw_forms
from geartrain_simulation.stores.segments import Row

DOORS = "doors"


class SourceFleet(RevisionFleet):
    """One run. No life runs a former revision: it would never come to an end."""

    stale_p = 0.0

    def _drawn_forms(self, seed: int) -> list[Form]:
        forms = draw_forms(seed)
        self._since = Random(f"{seed}/sources").randrange(2, len(forms) + 1)
        return [replace(form, doors=number >= self._since) for number, form in enumerate(forms, 1)]

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
        lacking = [e for e in self.ledger.all_entries() if e.kind is EntryKind.LACKS and e.source == DOORS]
        if lacking:
            detail = f"entry {lacking[0].number}: {lacking[0].device} is said to lack what comes to it"
            self.checkers.breach("waited for", detail)
        found, source = super()._expected(), doors_beside(self.source)
        for (device, _), channels in found.items():
            channels[DOORS] = [
                Row(time, f"{device}/{DOORS}", number, b"", (reading.sensor, reading.level))
                for number, (time, reading) in enumerate(doors_of(source, device))
            ]
        return found
