"""Splitting: a windowed aggregate as two steps, one on each device and one in the cloud that merges.

Between a user's graph, which says nothing of it, and the cut. Guarantees: the result is the same to the last
bit, with the same origins, event times and dead letters. A graph that is split already is left as it is. An
aggregate whose partial is not on the edge is one step again, so that nothing is lost by not splitting it.

An aggregate may be split when its windows are tumbling, sliding or global and it gives no early results. It
must not be pinned to the cloud, and its keys not be local to a device. One whose keys are stands there whole.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from geartrain.graph.graph import Graph, Input, Step, key_step
from geartrain.graph.operator import StreamProperties
from geartrain.planning.dealt import below_deals
from geartrain.planning.properties import derive_properties

if TYPE_CHECKING:
    from geartrain.operators.aggregate import WindowAggregate

PARTIAL, MERGE = "partial_aggregate", "merge_partials"
"""The kinds of operator of the two steps."""
_ID_CHARS_MAX = 63


def with_partials(graph: Graph) -> Graph:
    """`graph` with each aggregate that may be split as two steps: `<step>_partial`, and `<step>` below it."""
    if not any(_is_whole(step) for step in graph.steps):
        return graph
    properties = derive_properties(graph)
    dealt = below_deals(graph)
    taken = {step.id for step in graph.steps}
    steps: list[Step] = []
    for step in graph.steps:
        if step.id not in dealt and may_split(graph, step, properties):
            steps += _split(graph, step, taken)
        else:
            steps.append(step)
    return Graph(graph.name, tuple(steps))


def put_back(graph: Graph, edge: Collection[str]) -> Graph:
    """`graph` with each aggregate whole again whose partial is not among the steps `edge`."""
    apart = {s.id: s for s in graph.steps if s.operator.kind == PARTIAL and s.id not in edge}
    if not apart:
        return graph
    steps: list[Step] = []
    for step in graph.steps:
        if step.id in apart:
            continue
        partial = apart.get(step.inputs[0].step) if step.inputs else None
        if partial is not None:
            operator: Any = partial.operator
            step = replace(step, operator=operator.whole, inputs=partial.inputs, tier=partial.tier)
        steps.append(step)
    return Graph(graph.name, tuple(steps))


def may_split(graph: Graph, step: Step, properties: dict[str, StreamProperties]) -> bool:
    """Whether `step` is an aggregate that may be split, above all that comes down to devices."""
    if not _is_whole(step):
        return False
    above = step.inputs[0].step
    if properties[above].key_local or key_step(graph, above) is None:
        return False
    from geartrain.declarations.windows import (
        Session,  # an agent whose flow has no windows does not load them
    )

    whole: WindowAggregate = step.operator  # type: ignore[assignment]  # its kind says so
    return whole.early is None and not isinstance(whole.window, Session)


def _is_whole(step: Step) -> bool:
    """Whether it is an aggregate over windows, in one step, that was not pinned to the cloud."""
    return step.operator.kind == "window_aggregate" and step.tier != "cloud"


def _split(graph: Graph, step: Step, taken: set[str]) -> tuple[Step, Step]:
    from geartrain.operators.merge_partials import MergePartials
    from geartrain.operators.partial_aggregate import PartialAggregate

    above = step.inputs[0].step
    record = graph[above].out
    whole: WindowAggregate = step.operator  # type: ignore[assignment]
    operator = PartialAggregate(whole, step.id, _key_type(graph, above))
    name = free_name(step.id, "partial", taken)
    partial = Step(name, operator, step.inputs, operator.row(name, record), step.tier)
    merging = replace(step, operator=MergePartials(whole, record), inputs=(Input(name),), tier=None)
    return partial, merging


def _key_type(graph: Graph, stream: str) -> Any:
    """The type of the keys of a stream that is keyed by a field of a plain type, None for any other."""
    from geartrain.operators.partial_aggregate import KEY_TYPES
    from geartrain.schema import derive, logicals

    keys = key_step(graph, stream)
    field = getattr(keys.operator, "field", None) if keys is not None else None
    kind = graph[stream].out
    for known, logical in zip(derive(kind).fields, logicals(kind), strict=True):
        if known.name == field and logical is None:
            return next((k for k in KEY_TYPES if derive(k).fields[0].type is known.type), None)
    return None


def free_name(step: str, part: str, taken: set[str]) -> str:
    """An id for a step that the planner adds to `step`, which is then among `taken`."""
    name, number = f"{step[: _ID_CHARS_MAX - 11]}_{part}", 2
    while name in taken:
        name, number = f"{step[: _ID_CHARS_MAX - 11]}_{part}{number}", number + 1
    taken.add(name)
    return name
