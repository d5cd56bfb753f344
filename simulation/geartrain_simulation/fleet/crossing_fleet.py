"""Devices that go over from one cut to another, at any start of their agents, whatever else befalls them.

Beside the usual worlds, with the faults of these: kills, losses of power, restored and copied spools, packets
lost and doubled. Each life of an agent runs one of two cuts of a flow, in which a record leaves the device as
it is, or as the step behind made it. Rules: the crossings of a device have the numbers 1, 2, 3 in the log.
Behind one, rows come only by the channel of its cut. Each record comes once, by one channel or the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import msgspec

from geartrain import Flow, Table
from geartrain.graph.graph import Graph
from geartrain.planning import Plan
from geartrain_cloud.log.entry_reasons import EntryCode, runs_of
from geartrain_cloud.ports import EntryKind
from geartrain_edge.settings import Policy
from geartrain_simulation.fleet.cuts_fleet import CLOUD, EDGE, CutsFleet
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.readings import Reading, Readings, expected_rows
from geartrain_simulation.fleet.troubles import Fault

CHANNELS = {CLOUD: "readings", EDGE: "doubled"}
"""By cut, the channel that its rows come by."""
"""What the log says of a crossing whose batch the disk has damaged."""


def doubled(reading: Reading) -> Reading:
    """What the step makes of a record, wherever it runs."""
    return Reading(reading.sensor, 2 * reading.level)


def crossing_graph(seed: int, records: Mapping[str, int], pause_s_max: float) -> Graph:
    """Readings, doubled, to a table."""
    flow = Flow("fleet")
    source = Readings(seed=seed, records=records, pause_s_max=pause_s_max)
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    readings.map(doubled).sink("levels", Table("levels"))
    return flow.graph()


class CrossingFleet(CutsFleet):
    """One run. Ingest knows the channels of both cuts."""

    def __init__(self, seed: int) -> None:
        random, devices, faults = Random(f"{seed}/crossing"), list[Device](), list[Fault]()
        for number in range(1, random.choice((1, 2, 2)) + 1):
            policy = random.choice((Policy.BLOCK, Policy.BLOCK, Policy.DROP_OLDEST, Policy.DOWNSAMPLE))
            size = random.choice((2_000, 10_000, 1 << 20))
            devices.append(Device(f"device-{number}", random.choice((40, 100)), 0, None, policy, size))
            name = devices[-1].name
            times = [random.uniform(0.5, 5) for _ in range(random.choice((2, 5, 8)))]
            faults += [Fault("stop", name, at_s=at_s) for at_s in times]
            if random.random() < 0.4:
                kind = random.choice(("restore", "restore", "delete"))
                at_s, for_s = random.uniform(0.5, 5), random.uniform(0.2, 4)
                faults.append(Fault(kind, name, at_s=at_s, for_s=for_s))
            elif random.random() < 0.25:
                faults.append(Fault("copy", name, at_s=random.uniform(1, 6)))
        super().__init__(seed, devices, faults)
        self.lives = replace(self.lives, mends=self._mend)

    def _graph(self) -> Graph:
        return crossing_graph(self._seed, self.records, self.climate.read_s_max)

    def _known_to_ingest(self, graph: Graph) -> Plan:
        edge, cloud = self.plans[EDGE], self.plans[CLOUD]
        return msgspec.structs.replace(edge, channels=(cloud.channels[0], *edge.channels))

    def _cut_of(self, node: str, life: int) -> str:
        return Random(f"{self._seed}/{node}/{life}/cut").choice(sorted(CHANNELS))

    def _check(self, device: Device) -> None:
        self._check_cuts(device.name)
        self._check_records(device)

    def _check_cuts(self, name: str) -> None:
        """What the log has of a device, entry by entry."""
        number, channel = 0, ""
        # A gap has a digest of its own: it may stand behind what a spool held that was set back since.
        spoils = {"flip", "restore", "copy"}
        may_lose = any(fault.kind in spoils and fault.node == name for fault in self.faults)
        for entry in self.ledger.all_entries():
            if entry.device != name:
                continue
            if entry.kind is EntryKind.EPOCH and not number:
                channel = ""  # a fresh spool may begin with any cut
            elif entry.kind is EntryKind.CROSSING:
                is_known = entry.reason.code != EntryCode.CROSSINGS_LOST
                if entry.seq != number + 1 and (is_known or entry.seq <= number):
                    self.checkers.breach("crossing", f"{name}: crossing {entry.seq} follows on {number}")
                if not is_known and not may_lose:
                    self.checkers.breach("crossing", f"{name}: crossing {entry.seq} was lost by nobody")
                number = entry.seq
                runs = runs_of(entry.reason)
                channel = "" if runs is None else CHANNELS[EDGE if "doubled" in runs.cut else CLOUD]
            elif entry.kind in (EntryKind.ROWS, EntryKind.REMOVED) and entry.channel in CHANNELS.values():
                channel = channel or entry.channel
                if entry.channel != channel:
                    detail = f"{name}: rows of {entry.channel} stand behind crossing {number} to {channel}"
                    self.checkers.breach("cut", detail)

    def _check_records(self, device: Device) -> None:
        """Each record once, whichever channel it came by, and as the flow makes it."""
        whole = {row.number: row for row in expected_rows(self.plans[EDGE], device.name)["doubled"]}
        logged = self.checkers.logged()
        came = [one.row for c in CHANNELS.values() for one in logged.get((device.name, c), ())]
        for channel in CHANNELS.values():
            for row in (one.row for one in logged.get((device.name, channel), ())):
                due = whole[row.number].fields
                if channel == "readings":
                    due = (due[0], due[1] // 2)
                if row.fields != due:
                    self.checkers.breach("one content", f"{device.name}: {row} is not {due}")
        kinds = {fault.kind for fault in self.faults if fault.node == device.name}
        numbers = [row.number for row in came]
        if not self.loses and set(numbers) != set(whole):
            missing = sorted(set(whole) - set(numbers))
            self.checkers.breach("exactly once", f"{device.name}: records {missing[:5]} never came")
        if not kinds & {"restore", "delete", "copy", "flip"} and len(set(numbers)) != len(numbers):
            self.checkers.breach("exactly once", f"{device.name}: a record came by both channels, or twice")
