"""Planning of large graphs: CPU seconds and memory for all that stands between a graph and its plan.

A task is an instance of a step, so that parallelism counts. Each plan is made in a process of its own, whose
greatest memory is told, with the interpreter and the graph in it; how long building the graph took is noted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import Plan, make_plan
from geartrain.planning.properties import derive_properties
from tests.bench.harness import ROOT, Contender, Work, scaled
from tests.bench.planning_graphs import graph_of, tasks_of

SHAPES = {
    "100 steps": ("branches", 100, 1),
    "10,000 steps": ("branches", 10_000, 1),
    "10,000 steps written as a flow": ("written", 10_000, 1),
    "10,000 steps x 100": ("branches", 10_000, 100),
    "1,000,000 steps": ("branches", 1_000_000, 1),
    "1,000,000 steps in a chain": ("chain", 1_000_000, 1),
}
"""By name: shape, steps and parallelism at full size."""
LIMIT, LIMIT_S, LIMIT_MB = "the limit", 10.0, 1_000.0


def test_large_graphs_are_planned() -> None:
    found: dict[str, dict[str, float]] = {}

    def planned(name: str) -> Callable[[], float]:
        shape, steps, parallelism = SHAPES[name]
        size = scaled(steps, least=100)
        command = [sys.executable, "-m", "tests.bench.planning_graphs", shape, str(size), str(parallelism)]

        def run() -> float:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            found[name] = json.loads(done.stdout)
            assert found[name]["placed"] >= size * 0.9
            return found[name]["plan_s"]

        return run

    limit = {LIMIT: lambda: LIMIT_S}
    work = Work("planning", "CPU s", limit | {name: planned(name) for name in SHAPES}, LIMIT, {LIMIT: 1.0})
    work.run(1)
    memory: dict[str, Contender] = {LIMIT: lambda: LIMIT_MB}
    memory |= {name: partial(float, one["rss_mb"]) for name, one in found.items()}
    work = Work("planning memory", "MB RSS", memory, LIMIT, {LIMIT: 1.0})
    for name, one in found.items():
        work.notes.append(
            f"{name}: {one['tasks']:,.0f} tasks, {one['placed']:,.0f} steps placed, {one['channels']:,.0f} "
            f"channels, built in {one['build_s']:.2f} CPU s"
        )
    work.run(1)


@pytest.mark.parametrize("shape", ["chain", "branches", "written"])
@pytest.mark.parametrize("cut", ["edge", "cloud"])
def test_a_large_plan_is_that_of_the_rules(shape: str, cut: str) -> None:
    graph = graph_of(shape, 500, 3)
    plan = make_plan(graph, cut)
    assert sorted((*plan.edge, *plan.cloud)) == sorted(step.id for step in plan.graph.steps)
    assert {step.id for step in graph.steps} <= {step.id for step in plan.graph.steps}
    assert set(plan.edge) == (naive_edge(plan.graph) if cut == "edge" else {s.id for s in graph.sources()})
    assert [(c.id, c.sources) for c in plan.channels] == naive_channels(plan)
    assert tasks_of(plan) == sum(step.parallelism for step in plan.graph.steps)


def naive_edge(graph: Graph) -> set[str]:
    """All that may be on the edge, by the rules as they are written down, over and over until it is all."""
    properties, edge, before = derive_properties(graph), set[str](), -1
    while len(edge) > before:
        before = len(edge)
        for step in graph.steps:
            local = all(properties[i.step].key_local for i in step.inputs)
            partial = step.operator.kind == "partial_aggregate"
            may = partial or not step.operator.stateful or local
            if step.out is not None and may and all(i.step in edge for i in step.inputs):
                edge.add(step.id)
    return edge


def naive_channels(plan: Plan) -> list[tuple[str, frozenset[str]]]:
    """What leaves the edge, with the sources above it, each found by itself."""
    sources = {step.id for step in plan.graph.sources()}
    crossing = [
        step.id
        for step in plan.graph.steps
        if step.id in plan.edge and any(below.id in plan.cloud for below in plan.graph.consumers(step.id))
    ]
    found = [(step, plan.graph.ancestors(step) & sources) for step in crossing]
    return [*found, (DEAD_LETTERS, frozenset(sources)), (LATE, frozenset(sources))]
