"""Sharing: a stream that crosses the cut crosses once, whatever keys its readers want.

Between the cut and the channels. No channel carries keys, so the rows of a stream and those of a `key_by` of
it are the same. Where both would cross, only the stream does, and the cloud gives its records their keys. A
`key_by` that only the cloud reads then stands there; one that the devices read too is done on both sides.
Guarantees: the same results and dead letters; those of a `key_by` on both sides come from the devices alone.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import Graph, Input, Step
from geartrain.planning.splitting import free_name


def rows_of(graph: Graph, stream: str) -> str:
    """The stream whose rows `stream` has: what was keyed, for the output of a `key_by`, else itself."""
    step = graph[stream]
    while step.operator.kind == "key_by":
        step = graph[step.inputs[0].step]
    return step.id


def crossing(graph: Graph, edge: AbstractSet[str]) -> dict[str, list[str]]:
    """The streams that go up, in topological order, each with those of the same rows that it stands for."""
    found: dict[str, list[str]] = {}
    for step in graph.steps:
        if step.id in edge and any(c.id not in edge for c in graph.consumers(step.id)):
            found.setdefault(rows_of(graph, step.id), []).append(step.id)
    sent = {(rows if len(streams) > 1 else streams[0]): streams for rows, streams in found.items()}
    return {step.id: sent[step.id] for step in graph.steps if step.id in sent}


def is_again(step: Step) -> bool:
    """Whether it is a second `key_by`, which the planner put into the cloud."""
    return bool(getattr(step.operator, "again", False))


def settled(graph: Graph, edge: frozenset[str]) -> frozenset[str]:
    """`edge` without each `key_by` that only the cloud reads, where the rows that it keys cross anyway."""
    shared = {stream for streams in crossing(graph, edge).values() if len(streams) > 1 for stream in streams}
    if not shared:
        return edge
    kept = set(edge)
    for step in reversed(graph.steps):
        if step.operator.kind != "key_by" or step.id not in shared & kept or step.tier == "edge":
            continue
        if not any(below.id in kept for below in graph.consumers(step.id)):
            kept.discard(step.id)
            shared.add(step.inputs[0].step)
    return frozenset(kept)


def without_idle_keys(graph: Graph, edge: AbstractSet[str]) -> frozenset[str]:
    """`edge` without each `key_by` that no step there reads, unless it is pinned there: the cloud does it."""
    kept = set(edge)
    for step in reversed(graph.steps):
        idle = not any(below.id in kept for below in graph.consumers(step.id))
        if idle and step.operator.kind == "key_by" and step.tier != "edge":
            kept.discard(step.id)
    return frozenset(kept)


def share(graph: Graph, edge: AbstractSet[str]) -> Graph:
    """`graph` in which each `key_by` on both sides has a second one in the cloud, `<step>_again`."""
    needed: set[str] = set()
    for streams in crossing(graph, edge).values():
        for stream in streams if len(streams) > 1 else ():
            step = graph[stream]
            while step.operator.kind == "key_by":
                needed.add(step.id)
                step = graph[step.inputs[0].step]
    if not needed:
        return graph
    taken = {step.id for step in graph.steps}
    again: dict[str, str] = {}
    steps: list[Step] = []
    for step in graph.steps:
        if step.id not in edge and any(i.step in again for i in step.inputs):
            inputs = tuple(Input(again.get(i.step, i.step), i.grouping) for i in step.inputs)
            step = replace(step, inputs=inputs)
        steps.append(step)
        if step.id in needed:
            operator: Any = step.operator
            above = step.inputs[0].step
            again[step.id] = free_name(step.id, "again", taken)
            second = replace(operator, again=True)
            steps.append(Step(again[step.id], second, (Input(again.get(above, above)),), step.out))
    return Graph(graph.name, tuple(steps))
