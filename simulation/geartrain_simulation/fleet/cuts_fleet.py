"""Worlds in which each life of an agent runs one of two cuts of a flow.

Below the worlds of crossings and of state that moves. Guarantees: the cut of a life is a function of the
seed, the device and the life's number. The rules for a device are asked once the usual ones have held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from geartrain.graph.graph import Graph
from geartrain.planning import Plan, make_plan
from geartrain_edge.settings import AgentSettings
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet, Outcome
from geartrain_simulation.fleet.troubles import Fault, draw_faults
from geartrain_simulation.stores.segments import Row

CLOUD, EDGE = "cloud", "edge"
"""The two cuts: the steps behind the source run in the data centre, or on the devices."""


class CutsFleet(Fleet, ABC):
    """One run. `_graph`, `_known_to_ingest`, `_cut_of` and `_check` say of which world."""

    def __init__(self, seed: int, devices: list[Device], faults: list[Fault]) -> None:
        """faults: beside those that are drawn, of which none befalls a spool."""
        self.plans: dict[str, Plan] = {}
        self._lives: dict[str, int] = {}
        drawn = [one for one in draw_faults(seed, devices) if one.kind not in ("restore", "delete", "copy")]
        super().__init__(seed, devices=devices, faults=[*drawn, *faults])
        self.lives = replace(self.lives, turns=self._next_cut)

    @property
    def records(self) -> Mapping[str, int]:
        """By device, how many rows it has recorded."""
        return {device.name: device.records for device in self.devices}

    def _cut(self, graph: Graph) -> Plan:
        self.plans = {cut: make_plan(graph, cut, base=CLOUD) for cut in (CLOUD, EDGE)}
        return self._known_to_ingest(graph)

    @abstractmethod
    def _known_to_ingest(self, graph: Graph) -> Plan:
        """A plan with the channels of both cuts."""

    def _next_cut(self, node: str, settings: AgentSettings) -> tuple[AgentSettings, Plan]:
        life = self._lives[node] = self._lives.get(node, 0) + 1
        cut = self._cut_of(node, life)
        self.world.note(node, "cut", cut)
        return settings, self.plans[cut]

    @abstractmethod
    def _cut_of(self, node: str, life: int) -> str:
        """The cut that a life of a node runs, the first one having number 1."""

    def _expected(self) -> dict[tuple[str, str], dict[str, list[Row]]]:
        return {}

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        outcome = super().run()
        for device in self.devices:
            self._check(device)
        return outcome

    @abstractmethod
    def _check(self, device: Device) -> None:
        """Check what the world asks of a device in the end."""

    @property
    def loses(self) -> bool:
        """Whether the log says that rows were lost."""
        counters = self.ledger.counters
        return counters.get("records_dropped", 0) + counters.get("quarantined_records", 0) > 0
