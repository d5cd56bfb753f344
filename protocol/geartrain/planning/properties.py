"""What can be derived of each stream before it runs, and the `order` steps that follow from it.

The planner reads the domain (whether a keyed step may stand on a device, rule 2). It reads the order, too
(whether a step that must see the records of a key in canonical order needs an `order` step before it).
"""

from __future__ import annotations

from msgspec.structs import replace

from geartrain.errors import FlowError
from geartrain.graph.graph import Graph, Input, Step
from geartrain.graph.operator import StreamProperties


def derive_properties(graph: Graph) -> dict[str, StreamProperties]:
    """The properties of every step's output, by step id."""
    found: dict[str, StreamProperties] = {}
    for step in graph.steps:
        found[step.id] = step.operator.derive([found[i.step] for i in step.inputs])
    return found


def with_order(graph: Graph) -> Graph:
    """`graph` with a step `<step>_order` before each input of an ordered step whose keys do not come in order
    by themselves (`<step>_order_2` before its second one).

    Raises `FlowError` where a step that depends on time would read late records.
    """
    steps: list[Step] = []
    found: dict[str, StreamProperties] = {}
    for step in graph.steps:
        for port, source in enumerate(step.inputs):
            _check_timely(graph, step, found[source.step])
            if step.operator.ordered and not found[source.step].key_order:
                from geartrain.operators.order import Order  # which few flows need

                number = "" if port == 0 else f"_{port + 1}"
                order = Step(f"{step.id}_order{number}", Order(), (source,), graph[source.step].out)
                steps.append(order)
                found[order.id] = order.operator.derive([found[source.step]])
                inputs = [*step.inputs]
                inputs[port] = Input(order.id, source.grouping)
                step = replace(step, inputs=tuple(inputs))
        steps.append(step)
        found[step.id] = step.operator.derive([found[i.step] for i in step.inputs])
    return graph if len(steps) == len(graph.steps) else Graph(graph.name, tuple(steps))


def _check_timely(graph: Graph, step: Step, above: StreamProperties) -> None:
    if step.operator.stateful and not above.timely:
        raise FlowError(
            f"flow {graph.name}, step {step.id!r}: it keeps state in the order of event time, and reads late "
            "records, which have none: end the late stream in a sink, with only map, flat_map, filter and "
            "merge between"
        )
