"""Several random flows as one, so that one run on Spark proves them all: their graphs side by side, every
step and split named for its flow.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geartrain.graph import Graph
from geartrain.placement import Plan, legal_cuts, make_plan
from tests.reference.flows import Case
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer
from tests.reference.two_tiers import World

NAME = "many"


@dataclass(frozen=True)
class Many:
    """The flows of `cases` as one."""

    cases: Sequence[Case]
    graph: Graph
    world: World

    def answer(self) -> Answer:
        """The reference's."""
        return interpret(self.graph, self.world.inputs(), self.world.bounds_us)

    def plan(self, rng: random.Random) -> Plan:
        """A cut of each flow, drawn from its legal ones."""
        edge = [
            f"f{number}_{step}"
            for number, case in enumerate(self.cases)
            for step in sorted(rng.choice(legal_cuts(case.graph)).edge)
        ]
        return make_plan(self.graph, edge)


def many(cases: Sequence[Case]) -> Many:
    """Put flows side by side."""
    steps = []
    devices: dict[str, dict[str, Mapping[str, Sequence[Any]]]] = {}
    bounds: dict[str, int] = {}
    for number, case in enumerate(cases):
        prefix = f"f{number}_"
        for step in case.graph.steps:
            inputs = tuple(replace(i, step=prefix + i.step) for i in step.inputs)
            steps.append(replace(step, id=prefix + step.id, inputs=inputs))
        bounds |= {prefix + source: bound for source, bound in case.world.bounds_us.items()}
        for device, sources in case.world.devices.items():
            mine = devices.setdefault(device, {})
            for source, splits in sources.items():
                mine[prefix + source] = {f"f{number}/{name}": items for name, items in splits.items()}
    return Many(cases, Graph(NAME, tuple(steps)), World(devices, bounds))


def kinds(case: Case) -> set[str]:
    """The kinds of operators of a flow."""
    return {step.operator.kind for step in case.graph.steps}
