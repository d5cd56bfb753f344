"""The sentences of the planner: why a step stands where it stands, and what to write where a pin is illegal.

Beside `geartrain.planning.cuts`, which finds the rule that decides. Rules are told apart by `Rule` alone;
this is the one place where they become text. An `order` step is the planner's own, so a refusal speaks of the
step that it stands before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from geartrain.errors import PlacementError
from geartrain.graph.graph import Graph, Step, key_step
from geartrain.graph.operator import StreamProperties
from geartrain.operators.sink import DeviceSinkOperator, SinkOperator
from geartrain.planning.cuts import Reason, Rule

Obstacle = Callable[[Step], Reason | None]

_CLAUSES = {
    Rule.SOURCE: "a source stands on its devices",
    Rule.CLOUD_SOURCE: "it is read in the cloud, by the platform's own device",
    Rule.STORE: "a table is a store of the cloud",
    Rule.ONLY_TIER: "a {other} step always stands {where}",
    Rule.PINNED: "it is pinned to the {tier}",
    Rule.INPUT_IN_CLOUD: "its input {other!r} is in the cloud",
    Rule.MERGES: "it merges the partial aggregates of all devices",
    Rule.KEYS_NOT_LOCAL: "the keys of {other!r} are not local to a device",
    Rule.DOMAINS_DIFFER: "its inputs are partitioned by different fields",
    Rule.DEALS: "it deals its records to devices",
    Rule.PARTIAL: "a partial aggregate, merged in the cloud",
    Rule.LEGAL: "legal on the edge",
    Rule.CROSSES_ONCE: "it keys {other!r} in the cloud, so that its records cross once",
    Rule.ASKED: "the cut keeps it in the cloud",
}
_NUMBERS = {
    Rule.SOURCE: 1,
    Rule.STORE: 1,
    Rule.INPUT_IN_CLOUD: 2,
    Rule.MERGES: 2,
    Rule.KEYS_NOT_LOCAL: 2,
    Rule.DOMAINS_DIFFER: 2,
    Rule.PARTIAL: 2,
    Rule.LEGAL: 2,
}
"""Those of the rules of placement, which docs/placement.md explains."""
_WHERE = {"edge": "on the edge", "cloud": "in the cloud"}


def sentence(reason: Reason) -> str:
    """The reason as a sentence for people, without the name of its step.

    >>> sentence(Reason("hot", Rule.INPUT_IN_CLOUD, other="joined"))
    "rule 2: its input 'joined' is in the cloud"
    """
    number = _NUMBERS.get(reason.rule)
    return _clause(reason) if number is None else f"rule {number}: {_clause(reason)}"


def _clause(reason: Reason) -> str:
    """The reason without the number of its rule."""
    where = _WHERE[reason.tier]
    return _CLAUSES[reason.rule].format(other=reason.other, tier=reason.tier, where=where)


def refusal(
    graph: Graph, step: Step, obstacle: Obstacle, properties: Mapping[str, StreamProperties]
) -> PlacementError:
    """The error for a step that cannot be where it was asked to be; `obstacle` gives the reason."""
    reason = _blamed(graph, step, obstacle)
    said = f"step {step.id!r} cannot be on the edge ({sentence(reason)}): "
    if isinstance(step.operator, DeviceSinkOperator):
        return PlacementError(
            f'{said}end a stream of the devices in it: pin the step before it with .at("edge", device=...)'
        )
    root = _root(graph, step, obstacle)
    at_root = _blamed(graph, root, obstacle)
    if root.id != step.id:
        said += f"{_kept(root, at_root)}, so "
    return PlacementError(said + _fix(graph, step, root, at_root, properties))


def _blamed(graph: Graph, step: Step, obstacle: Obstacle) -> Reason:
    """What keeps `step` off the edge; where that is the `order` step before it, what keeps that one off."""
    reason = obstacle(step) or Reason(step.id, Rule.ASKED)
    if reason.rule is Rule.INPUT_IN_CLOUD and graph[reason.other].operator.kind == "order":
        own = obstacle(graph[reason.other])
        if own is not None:
            return replace(own, step=step.id)
    return reason


def _root(graph: Graph, step: Step, obstacle: Obstacle) -> Step:
    """The step that keeps `step` off the edge: itself, or one above it."""
    root = step
    while _blamed(graph, root, obstacle).rule is Rule.INPUT_IN_CLOUD:
        above = [graph[name] for name in _inputs(graph, root)]
        kept = next((s for s in above if obstacle(s) is not None), None)
        if kept is None:
            break  # it could be on the edge, and was not asked to be
        root = kept
    return root


def _inputs(graph: Graph, step: Step) -> list[str]:
    """The steps that `step` reads, those behind its `order` steps in their place."""
    above = [graph[i.step] for i in step.inputs]
    return [s.inputs[0].step if s.operator.kind == "order" else s.id for s in above]


def _kept(root: Step, reason: Reason) -> str:
    """The reason at `root` as part of a sentence about a step below it."""
    if reason.rule is Rule.PINNED:
        return f"{root.id!r} is pinned to the {reason.tier}"
    if reason.rule is Rule.ONLY_TIER:
        return f"{root.id!r} above it is a {reason.other} step, which always stands {_WHERE[reason.tier]}"
    return _clause(reason)


def _fix(
    graph: Graph, step: Step, root: Step, reason: Reason, properties: Mapping[str, StreamProperties]
) -> str:
    leave = f"let {step.id!r} run in the cloud"
    if reason.rule is Rule.KEYS_NOT_LOCAL:
        return f"{_make_local(graph, reason.other, properties)}, or {leave}"
    if reason.rule is Rule.DOMAINS_DIFFER:
        return f"partition all of them by the field that is their key, or {leave}"
    if reason.rule is Rule.MERGES:
        return f"its part that can be there is {reason.other!r}: name that, or {leave}"
    if reason.rule is Rule.PINNED:
        return f'take .at("cloud") off {root.id!r}, or {leave}'
    if reason.rule is Rule.ONLY_TIER:
        return f"name a step above {root.id!r}, or {leave}"
    if reason.rule is Rule.INPUT_IN_CLOUD and properties[reason.other].born_in_cloud:
        return f'take .at("cloud") off {reason.other!r}, deal its records with device=..., or {leave}'
    if isinstance(step.operator, SinkOperator):
        return f"leave the tier of {step.id!r} to the planner, or end the stream in a sink of the device"
    return f"leave the tier of {step.id!r} to the planner"


def _make_local(graph: Graph, stream: str, properties: Mapping[str, StreamProperties]) -> str:
    """What makes the keys of `stream` local to a device."""
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
