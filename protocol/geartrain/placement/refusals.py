"""Why a step that was asked to be on the edge cannot be there: one sentence with step, rule and fix.

Beside `geartrain.placement.cuts`, which finds the obstacle. Where that is an input in the cloud, the sentence
goes on to what keeps it there, for that is what has to be mended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geartrain.errors import PlacementError
from geartrain.graph import Graph, Step, key_step
from geartrain.operators.operator import StreamProperties
from geartrain.operators.sink import DeviceSinkOperator, SinkOperator

Obstacle = Callable[[Step], str | None]


def refusal(
    graph: Graph, step: Step, obstacle: Obstacle, properties: Mapping[str, StreamProperties]
) -> PlacementError:
    """The error for `step`, for which `obstacle` gives a reason."""
    reason = obstacle(step)
    if not step.inputs:
        return PlacementError(
            f"step {step.id!r} cannot be in the cloud (rule 1: a source stands on its devices): take "
            f'.at("cloud") off {step.id!r}'
        )
    said = f"step {step.id!r} cannot be on the edge ({reason}): "
    if isinstance(step.operator, DeviceSinkOperator):
        return PlacementError(
            f'{said}end a stream of the devices in it: pin the step before it with .at("edge", device=...)'
        )
    root = _root(graph, step, obstacle)
    if root.id != step.id:
        said += f"{_kept(root, obstacle)}, so "
    return PlacementError(said + _fix(graph, step, root, obstacle, properties))


def _root(graph: Graph, step: Step, obstacle: Obstacle) -> Step:
    """The step that keeps `step` off the edge: itself, or one above it."""
    root = step
    while " is in the cloud" in (obstacle(root) or ""):
        above = [graph[i.step] for i in root.inputs]
        kept = next((s for s in above if obstacle(s) is not None), None)
        if kept is None:
            break  # it could be on the edge, and was not asked to be
        root = kept
    return root


def _kept(root: Step, obstacle: Obstacle) -> str:
    reason = (obstacle(root) or "").removeprefix("rule 1: ").removeprefix("rule 2: ")
    return reason.replace("it is pinned", f"{root.id!r} is pinned")


def _fix(
    graph: Graph, step: Step, root: Step, obstacle: Obstacle, properties: Mapping[str, StreamProperties]
) -> str:
    reason = obstacle(root) or ""
    if "not local" in reason:
        return f"{_make_local(graph, root, properties)}, or let {step.id!r} run in the cloud"
    if "different fields" in reason:
        return f"partition all of them by the field that is their key, or let {step.id!r} run in the cloud"
    if "merges the partial" in reason:
        partial = root.inputs[0].step
        return f"its part that can be there is {partial!r}: name that, or let {step.id!r} run in the cloud"
    if "pinned to the cloud" in reason:
        return f'take .at("cloud") off {root.id!r}, or let {step.id!r} run in the cloud'
    if isinstance(step.operator, SinkOperator):
        return f"leave the tier of {step.id!r} to the planner, or end the stream in a sink of the device"
    return f"leave the tier of {step.id!r} to the planner"


def _make_local(graph: Graph, step: Step, properties: Mapping[str, StreamProperties]) -> str:
    """What makes the keys of a step's input local to a device."""
    stream = next(i.step for i in step.inputs if not properties[i.step].key_local)
    if properties[stream].from_cloud:
        return "deal its records with device=by_key, or by the field that is their key"
    keyed = key_step(graph, stream)
    field = None if keyed is None else getattr(keyed.operator, "field", None)
    if keyed is None or field is None:
        return "key its input by the field that its source is partitioned_by, by name"
    above = [s for s in graph.steps if s.id in graph.ancestors(keyed.id)]
    lost = [
        s.id
        for s in above
        if properties[s.id].domain != field and any(properties[i.step].domain == field for i in s.inputs)
    ]
    if lost:
        return (
            f'say keeps=("{field}",) at {lost[0]!r}, where partitioned_by="{field}" is lost, if it keeps it'
        )
    sources = [s.id for s in above if not s.inputs and properties[s.id].domain != field]
    named = " and ".join(repr(s) for s in sources) or "its source"
    return f'declare partitioned_by="{field}" on {named}, if each {field} lives on one device'
