"""Several flows as one, so that one run on the host proves them all: their graphs side by side, every step,
table and split named for its flow.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import Graph
from geartrain.operators.sink import SinkOperator
from geartrain.planning import legal_cuts
from geartrain.planning.splitting import with_partials
from tests.reference.flows import Case
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer
from tests.reference.two_tiers import World

NAME = "many"

SPLIT_SHARE = 0.8
"""How often an aggregate that may be split is: few flows have one."""


@dataclass(frozen=True)
class Many:
    """The flows of `cases` as one."""

    cases: Sequence[Case]
    graph: Graph
    world: World

    def answer(self) -> Answer:
        """The reference's."""
        return interpret(self.graph, self.world.inputs(), self.world.bounds_us)

    def cut(self, rng: random.Random) -> list[str]:
        """The edge of a cut of each flow, drawn from its legal ones; mostly one that splits an aggregate,
        where there is one.
        """
        edge: list[str] = []
        for number, case in enumerate(self.cases):
            cuts = legal_cuts(case.graph)
            whole = {step.id for step in case.graph.steps}
            split = [cut for cut in cuts if not cut.edge <= whole]
            cut = rng.choice(split if split and rng.random() < SPLIT_SHARE else cuts)
            edge += [prefix_of(number) + step for step in sorted(cut.edge)]
        return edge

    def cuts(self, rng: random.Random) -> list[list[str]]:
        """The edge of the base cut, and that of each device, where every device has a cut of its own."""
        of_flows = [legal_cuts(case.graph) for case in self.cases]
        return [
            [
                prefix_of(number) + step
                for number, cuts in enumerate(of_flows)
                for step in sorted(rng.choice(cuts).edge)
            ]
            for _ in range(1 + len(self.world.devices))
        ]


def many(cases: Sequence[Case]) -> Many:
    """Put random flows side by side."""
    return Many(cases, *side_by_side((case.graph, case.world) for case in cases))


def side_by_side(flows: Iterable[tuple[Graph, World]]) -> tuple[Graph, World]:
    """Flows and their worlds as one flow in one world, with tables that are named for their flow, too."""
    steps = []
    devices: dict[str, dict[str, Mapping[str, Sequence[Any]]]] = {}
    bounds: dict[str, int] = {}
    for number, (graph, world) in enumerate(flows):
        prefix = prefix_of(number)
        for step in graph.steps:
            inputs = tuple(replace(i, step=prefix + i.step) for i in step.inputs)
            operator = step.operator
            if isinstance(operator, SinkOperator):
                table = dataclasses.replace(operator.table, name=prefix + operator.table.name)
                operator = replace(operator, table=table)
            steps.append(replace(step, id=prefix + step.id, inputs=inputs, operator=operator))
        bounds |= {prefix + source: bound for source, bound in world.bounds_us.items()}
        for device, sources in world.devices.items():
            mine = devices.setdefault(device, {})
            for source, splits in sources.items():
                mine[prefix + source] = {f"f{number}/{name}": items for name, items in splits.items()}
    return Graph(NAME, tuple(steps)), World(devices, bounds)


def prefix_of(number: int) -> str:
    """What the steps of flow `number` begin with."""
    return f"f{number}_"


def kinds(case: Case) -> set[str]:
    """The kinds of operators of a flow, with those that some of its cuts have."""
    return {step.operator.kind for graph in (case.graph, with_partials(case.graph)) for step in graph.steps}
