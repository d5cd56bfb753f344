"""Which steps of a graph stand below one that deals to devices: what a cut has to know of them.

Apart from what builds them, so that an agent whose flow has none imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from geartrain.graph.graph import Graph


def below_deals(graph: Graph) -> frozenset[str]:
    """The steps that read, at once or further down, what was dealt to devices."""
    found: set[str] = set()
    for step in graph.steps:
        if any(i.step in found or graph[i.step].operator.kind == "deal" for i in step.inputs):
            found.add(step.id)
    return frozenset(found)


def edge_ancestors(graph: Graph, steps: Iterable[str]) -> frozenset[str]:
    """The steps above those on the edge, they included, that must be there too: up to what comes down."""
    found: set[str] = set()
    waiting = [*steps]
    while waiting:
        current = waiting.pop()
        if current not in found and graph[current].operator.kind != "deal":
            found.add(current)
            waiting += [i.step for i in graph[current].inputs]
    return frozenset(found)


def waits_for_time(graph: Graph, deal_id: str) -> bool:
    """Whether a step on the device, below that `deal`, does something when time passes."""
    below: set[str] = {deal_id}
    for step in graph.steps:
        if any(i.step in below for i in step.inputs):
            below.add(step.id)
            if step.operator.stateful or step.operator.kind == "stateless":
                return True
    return False
