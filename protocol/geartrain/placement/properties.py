"""What can be derived of each stream before it runs: its partition domain and whether it is in canonical
order.

The planner reads both: the domain decides whether a keyed step may stand on a device (rule 2), the order
whether a keyed task may run at all without holding records back.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.errors import PlacementError
from geartrain.graph import Graph, Step
from geartrain.operators.flat_map import FlatMap
from geartrain.operators.key_by import KeyBy
from geartrain.operators.map import Map
from geartrain.operators.source import SourceOperator


@dataclass(frozen=True, slots=True)
class StreamProperties:
    """Properties of a step's output.

    domain: the field whose every value lives on one device only, None where none is known; in_order: within a
    split the records come in canonical order; key_local: the stream is keyed and each key lives in one split.
    """

    domain: str | None
    in_order: bool
    key_local: bool = False


def derive_properties(graph: Graph) -> dict[str, StreamProperties]:
    """The properties of every step's output, by step id."""
    found: dict[str, StreamProperties] = {}
    for step in graph.steps:
        found[step.id] = _of(step, [found[i.step] for i in step.inputs])
    return found


def _of(step: Step, inputs: list[StreamProperties]) -> StreamProperties:
    operator = step.operator
    if isinstance(operator, SourceOperator):
        return StreamProperties(operator.partitioned_by, operator.source.in_order)
    above = inputs[0]
    if isinstance(operator, (Map, FlatMap)):
        return StreamProperties(above.domain if above.domain in operator.keeps else None, above.in_order)
    if isinstance(operator, KeyBy):
        local = above.domain is not None and operator.field == above.domain
        return StreamProperties(above.domain, above.in_order, key_local=local)
    if operator.kind == "filter":
        return above
    return StreamProperties(None, False)


def check_order(graph: Graph) -> None:
    """Raise `PlacementError` for a keyed task whose records are not known to come in canonical order."""
    properties = derive_properties(graph)
    for step in graph.steps:
        if not step.operator.stateful:
            continue
        above = properties[step.inputs[0].step]
        if not above.in_order:
            raise PlacementError(
                f"step {step.id!r} needs its records in event-time order, and the stream of "
                f"{step.inputs[0].step!r} is not known to be: "
                "use a source that replays in order (bounded, out-of-orderness 0) with only map, "
                "filter, flat_map and key_by between"
            )
        if not above.key_local:
            raise PlacementError(
                f"step {step.id!r} is keyed by {step.inputs[0].step!r}, whose keys may come from "
                "several splits: key by the field that the "
                "source declares as partitioned_by, and pass keeps={that field} to the map and "
                "flat_map steps between"
            )
