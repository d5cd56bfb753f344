"""One device and ingest, killed at one given point of their trace: the points are counted, not drawn."""

from __future__ import annotations

from geartrain_simulation.fleet.fleet import Fleet, Outcome, Size
from geartrain_simulation.machine.world import Node

SMALL = Size(devices=1, records=8, limit_s=120.0)
NODES = ("device-1", "ingest")


def points_of(node: str) -> int:
    """How many points a node passes in a run without any trouble."""
    fleet = Fleet(0, plot=lambda fleet: None, size=SMALL)
    fleet.run()
    return fleet.world.nodes[node].points


def run_killed(node: str, number: int, *, power: bool) -> Outcome:
    """A run in which the node is killed at its `number`-th point, or loses its power there."""

    def plot(fleet: Fleet) -> None:
        doomed: Node = fleet.world.nodes[node]
        doomed.kill_at_point(number, power=power)

    outcome = Fleet(0, plot=plot, size=SMALL).run()
    assert outcome.counters.get("losses", 0) == outcome.counters.get("quarantined_batches", 0) == 0
    return outcome
