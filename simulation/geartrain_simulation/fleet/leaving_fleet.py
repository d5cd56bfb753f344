"""Devices that leave a step to the cloud with what it keeps, whatever else befalls them.

Beside the usual worlds, with their kills, losses of power, new epochs, damaged and full disks, packets lost
and doubled. The agents of a device run the totals of its sensors for some lives, and then no more. Rules: the
state stands in the log once, before the first record that the step misses on the device. No policy of a full
spool gives it up. The totals that the cloud makes from there on are those of the step that never moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from geartrain import Flow, Table
from geartrain.graph.graph import STATE, Graph
from geartrain.planning import Plan
from geartrain.planning.plan import state_channel
from geartrain.records.batch import Batch
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain.state.moving import Cells, said_of
from geartrain_cloud.ports import EntryKind
from geartrain_edge.settings import Policy
from geartrain_simulation.fleet.cuts_fleet import CLOUD, EDGE, CutsFleet
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.readings import Reading, Readings, Running, expected_rows
from geartrain_simulation.fleet.troubles import Fault

TOTALS, READINGS = "totals", "readings"
_LEAVES = 0.6
"""How likely a life of an agent is the first without the step."""


def leaving_graph(seed: int, records: Mapping[str, int], pause_s_max: float) -> Graph:
    """Readings, and their running totals by sensor to a table."""
    flow = Flow("fleet")
    source = Readings(seed=seed, records=records, pause_s_max=pause_s_max)
    readings = flow.source(READINGS, source, out=Reading, partitioned_by="sensor")
    readings.key_by("sensor").process(TOTALS, Running()).sink("sums", Table("sums"))
    return flow.graph()


class LeavingFleet(CutsFleet):
    """One run. Ingest knows the channels of both cuts, and that of moved state."""

    def __init__(self, seed: int) -> None:
        random, devices, faults = Random(f"{seed}/leaving"), list[Device](), list[Fault]()
        self._left: set[str] = set()
        for number in range(1, random.choice((1, 2)) + 1):
            policy = random.choice((Policy.BLOCK, Policy.BLOCK, Policy.DROP_OLDEST))
            size = random.choice((2_000, 10_000, 1 << 20))
            devices.append(Device(f"device-{number}", random.choice((40, 100)), 0, None, policy, size))
            times = [random.uniform(0.5, 5) for _ in range(random.choice((2, 5, 8)))]
            faults += [Fault("stop", devices[-1].name, at_s=at_s) for at_s in times]
        super().__init__(seed, devices, faults)

    def _graph(self) -> Graph:
        return leaving_graph(self._seed, self.records, self.climate.read_s_max)

    def _known_to_ingest(self, graph: Graph) -> Plan:
        edge, cloud = self.plans[EDGE], self.plans[CLOUD]
        return msgspec.structs.replace(
            edge, channels=(cloud.channels[0], *edge.channels, state_channel(graph))
        )

    def _cut_of(self, node: str, life: int) -> str:
        if life > 1 and Random(f"{self._seed}/{node}/{life}/leaves").random() < _LEAVES:
            self._left.add(node)
        return CLOUD if node in self._left else EDGE

    def _check(self, device: Device) -> None:
        self._check_places(device.name)
        self._check_totals(device.name)

    def _check_places(self, name: str) -> None:
        """Where the state of a device stands in the log, and that no full spool has given it up."""
        crossed = read = False
        for entry in self.ledger.all_entries():
            if entry.device != name:
                continue
            crossed |= entry.kind is EntryKind.CROSSING
            rows = entry.kind in (EntryKind.ROWS, EntryKind.REMOVED)
            read |= rows and entry.channel == READINGS
            if rows and entry.channel == STATE and read:
                self.checkers.breach("state first", f"{name}: state stands behind records of its step")
            if rows and entry.channel == TOTALS and (crossed or read):
                self.checkers.breach("cut", f"{name}: totals of the device stand behind its crossing")
        if shed := self.spools[name].counters.get(f"shed.{STATE}", 0):
            self.checkers.breach("state kept", f"{name}: its full spool has given up {shed} cells")

    def _check_totals(self, name: str) -> None:
        """The totals of the device, with those that the cloud makes from its state on."""
        if self.loses:
            return
        logged, plan = self.checkers.logged(), self.plans[CLOUD]
        cells = Cells()
        for one in logged.get((name, STATE), ()):
            called, key, _, _, cell = one.row.fields
            step, *_ = said_of(called)
            if (step, key) in cells:
                self.checkers.breach("state once", f"{name}: the state of {key!r} came twice")
            cells[step, key] = cell
        fragment, codec = Fragment(plan.graph, plan.cloud), RowCodec(Reading)
        fragment.take_in(cells)
        for row in sorted((one.row for one in logged.get((name, READINGS), ())), key=lambda row: row.number):
            values = codec.from_columns([[field] for field in row.fields])
            fragment.feed(READINGS, Batch(values, [row.time], [row.name], [row.number]))
        found = [one.row.fields for one in logged.get((name, TOTALS), ())]
        for batch in fragment.take().batches.get("sums", ()):
            found += [msgspec.structs.astuple(value) for value in batch.values]
        due = [row.fields for row in expected_rows(self.plans[EDGE], name).get(TOTALS, ())]
        if sorted(map(tuple, found)) != sorted(map(tuple, due)):
            detail = f"{name}: {len(found)} totals, of which {len(set(due) - set(found))} of {len(due)} lack"
            self.checkers.breach("same results", detail)
