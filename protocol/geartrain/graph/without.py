"""A graph without some of its steps: what a running app becomes when steps are removed from it.

Beside the graph; pure. Guarantees: what is left is a whole graph in which no step differs from what it was.
What cannot stand without the steps goes as well, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from geartrain.errors import FlowError
from geartrain.graph.graph import Graph

ORDER = "order"
"""The kind of a step that stands there for the one below it alone."""


def without(graph: Graph, steps: Collection[str]) -> Graph:
    """The graph without these steps, without those below that read nothing else, and without those above that
    only bring records into order or key them for steps that are gone.

    Raises `FlowError` for a step that is not there, for one that would lack one of its inputs, and for one
    that keeps something and would have no reader. Raises it, too, where no sink would be left.
    """
    if not steps:
        return graph
    gone = {graph[step].id for step in steps}
    for step in graph.steps:  # in topological order
        if step.inputs and all(source.step in gone for source in step.inputs):
            gone.add(step.id)
    where = f"flow {graph.name}"
    for step in graph.steps:
        lacking = [source.step for source in step.inputs if source.step in gone]
        if step.id not in gone and lacking:
            raise FlowError(
                f"{where}: step {step.id!r} reads {lacking[0]!r} and others, which stay: remove it as well, "
                "or update the app with a flow that is written without"
            )
    for step in reversed(graph.steps):
        readers = graph.consumers(step.id)
        if step.id in gone or not step.inputs or not readers or any(one.id not in gone for one in readers):
            continue
        if step.operator.stateful and step.operator.kind != ORDER:
            raise FlowError(f"{where}: nothing would read step {step.id!r} any more: remove it as well")
        gone.add(step.id)
    left = [step for step in graph.steps if step.id not in gone]
    if not any(step.out is None for step in left):
        raise FlowError(f"{where}: no sink would be left: kill the app instead")
    return Graph.of(graph.name, left)
