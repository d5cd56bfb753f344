"""Why a measured plan is as it is, and what in it deserves a second look, in sentences for people.

Beside the planner, for `gear plan`. A rule or a pin decides first. Where both tiers are legal, the reason is
what the other tier would have cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from geartrain.declarations.limits import check_postgres
from geartrain.declarations.sink import Table
from geartrain.errors import ConfigError
from geartrain.graph.graph import Graph, Step, Tier
from geartrain.operators.sink import SinkOperator
from geartrain.planning.cuts import Cut, Reason, Rule, limits
from geartrain.planning.estimate import SCALE, estimated_bytes
from geartrain.planning.least_bytes import least_bytes
from geartrain.planning.plan import Plan
from geartrain.planning.refusals import sentence
from geartrain.planning.sharing import crossing
from geartrain.planning.splitting import MERGE, PARTIAL, with_partials
from geartrain.schema import Field, derive
from geartrain_client.planning.cost import NEAR_LEAST, Costs, CutCost, rate

WEIGHED_STEPS_MAX = 300
"""Steps of a graph of which each is weighed on the other tier, too, to say why it stands where it stands."""
_UNTYPED = re.compile(r"\b(Any|list|dict|tuple)\b(?![\[:])")


def is_untyped(field: Field) -> bool:
    """Whether a field says nothing of what it holds: `Any`, or a list, dict or tuple of who knows what."""
    return field.logical.startswith("nested(") and _UNTYPED.search(field.logical) is not None


class CostReason(Reason, frozen=True, kw_only=True):
    """The step stands where the cheapest cut has it (`Rule.COST`); rates are bytes a second over the link.

    here, there: of this cut, and of the best one with the step on the other tier; span: what people are told
    rates in; partial: it is the step's partial aggregate that could move; saved: of (partial aggregates, the
    records that they stand for), where the step is one of these.
    """

    here: float
    there: float
    span: str
    partial: bool = False
    saved: tuple[float, float] | None = None


class CapacityReason(Reason, frozen=True, kw_only=True):
    """The other tier would take more of a device than its capacity (`Rule.CAPACITY`), shares of a core."""

    needed: float
    capacity: float
    partial: bool = False


class EstimateReason(Reason, frozen=True, kw_only=True):
    """The step stands where the cut has it that is estimated to send the fewest bytes (`Rule.ESTIMATE`).

    here, there: bytes over the link for one record of each source, of this cut, and of the best one with the
    step on the other tier; partial: it is the step's partial aggregate that could move.
    """

    here: float
    there: float
    partial: bool = False


def estimated_reasons(plan: Plan) -> dict[str, Reason]:
    """Why each step stands where it stands in a plan that was chosen by estimate."""
    if len(plan.graph.steps) > WEIGHED_STEPS_MAX:
        return {step.id: plan.reason(step) for step in plan.graph.steps}
    split = with_partials(plan.graph)
    sizes, (possible, kept) = estimated_bytes(split), limits(split)
    here = _sent(split, plan.cut.edge, sizes)

    def reason(step: Step) -> Reason:
        moved = _movable(plan.graph, split, step)
        on_edge = moved in plan.cut.edge
        fixed = step.tier is not None or moved not in possible or moved in kept
        if fixed or split[moved].operator.kind == "key_by":
            return plan.reason(step)
        may, must = (possible - {moved}, kept) if on_edge else (possible, kept | {moved})
        there = _sent(split, least_bytes(split, may, must, sizes), sizes)
        tier: Tier = "edge" if on_edge else "cloud"
        partial = moved != step.id
        return EstimateReason(step.id, Rule.ESTIMATE, tier, here=here, there=there, partial=partial)

    return {step.id: reason(step) for step in plan.graph.steps}


def estimated_sent(graph: Graph, cut: Cut) -> float:
    """The bytes that a cut of a graph, its aggregates split, is estimated to send for one record of each
    source.
    """
    return _sent(graph, cut.edge, estimated_bytes(graph))


def _sent(graph: Graph, edge: frozenset[str], sizes: Mapping[str, int]) -> float:
    """The bytes that a cut is estimated to send up for one record of each source."""
    return sum(sizes[stream] for stream in crossing(graph, edge)) / SCALE


def reasons(plan: Plan, costs: Costs, compared: Sequence[CutCost]) -> dict[str, Reason]:
    """Why each step stands where it stands in a plan that was chosen by cost; `compared`: all legal cuts."""
    split = with_partials(plan.graph)
    chosen = costs.of_cut(split, plan.cut)
    return {step.id: _reason(plan, split, step, chosen, compared, costs) for step in plan.graph.steps}


def _reason(
    plan: Plan, split: Graph, step: Step, chosen: CutCost, compared: Sequence[CutCost], costs: Costs
) -> Reason:
    moved = _movable(plan.graph, split, step)
    on_edge = moved in plan.cut.edge
    others = [one for one in compared if (moved in one.cut.edge) is not on_edge]
    if step.tier is not None or not others:
        return plan.reason(step)
    tier: Tier = "edge" if on_edge else "cloud"
    partial = moved != step.id
    able = [one for one in others if one.cpu_share <= costs.capacity]
    if not able:
        least = min(one.cpu_share for one in others)
        return CapacityReason(
            step.id, Rule.CAPACITY, tier, needed=least, capacity=costs.capacity, partial=partial
        )
    saved = None
    if on_edge and step.operator.kind == PARTIAL:
        rows, records = (costs.streams[one].bytes for one in (step.id, step.inputs[0].step))
        saved = costs.per_s(rows), costs.per_s(records)
    best = min(one.bytes for one in able)
    return CostReason(
        step.id,
        Rule.COST,
        tier,
        here=chosen.bytes_per_s,
        there=costs.per_s(best),
        span=costs.span(plan.graph),
        partial=partial,
        saved=saved,
    )


def told(reason: Reason) -> str:
    """A reason as a sentence for people, that of a cost too."""
    here, there = ("edge", "cloud") if reason.tier == "edge" else ("cloud", "edge")
    if isinstance(reason, CapacityReason):
        part = " (its partial aggregates)" if reason.partial else ""
        needed = f"{reason.needed:.2g} of a core or more, above the capacity of {reason.capacity:g}"
        return f"cost: {there}{part} would take {needed}"
    if isinstance(reason, EstimateReason):
        part = " (its partial aggregates)" if reason.partial else ""
        sizes = f"{here} {reason.here:.3g} B, {there}{part} at least {reason.there:.3g} B"
        same = ": as good, so on the edge" if reason.tier == "edge" and reason.here == reason.there else ""
        return f"estimate: {sizes}{same}"
    if not isinstance(reason, CostReason):
        return sentence(reason)
    part = " (its partial aggregates)" if reason.partial else ""
    size, other = (rate(per_s, "B", reason.span) for per_s in (reason.here, reason.there))
    said = f"cost: {here} {size}, {there}{part} at least {other}"
    if reason.saved is not None:
        rows, records = (rate(per_s, "B", reason.span) for per_s in reason.saved)
        said += f"; {rows} of partial aggregates in place of {records} of records"
    near = max(reason.here, reason.there) <= min(reason.here, reason.there) * (1 + NEAR_LEAST)
    return f"{said}: within 5 %, so as many steps as possible on the edge" if near else said


def _movable(graph: Graph, split: Graph, step: Step) -> str:
    """The step that would go to the edge in place of `step`: its partial, where it may be split."""
    merges = split[step.id].operator.kind == MERGE and graph[step.id].operator.kind != MERGE
    return split[step.id].inputs[0].step if merges else step.id


def warnings(plan: Plan, costs: Costs | None = None) -> list[str]:
    """What of a plan deserves a second look: one sentence each."""
    found = [text for step in plan.graph.steps for text in _of_step(plan.graph, step, costs)]
    for channel in plan.channels:
        fields = [field.name for field in derive(channel.kind).fields if is_untyped(field)]
        if fields:
            found.append(_untyped(channel.id, fields, costs))
    found += _of_tables(plan.graph)
    if costs is not None and costs.of_cut(plan.graph, plan.cut).cpu_share > costs.capacity:
        share = costs.of_cut(plan.graph, plan.cut).cpu_share
        found.append(
            f"this cut takes {share:.2g} of a core of a device, above the capacity of {costs.capacity:g}: "
            "deal its splits to more devices, or cut higher"
        )
    return found


def _of_tables(graph: Graph) -> list[str]:
    """Which tables a platform that keeps its tables in PostgreSQL will not take, one sentence each."""
    found = []
    for step in graph.sinks():
        if isinstance(step.operator, SinkOperator) and isinstance(table := step.operator.table, Table):
            schema = derive(graph[step.inputs[0].step].out)
            try:
                check_postgres(f"sink {step.id!r}", table.name, table.key, schema)
            except ConfigError as error:
                found.append(f"{error}, where [tables] store of the platform is a PostgreSQL")
    return found


def _of_step(graph: Graph, step: Step, costs: Costs | None) -> list[str]:
    found = []
    if not step.operator.replayable:
        found.append(
            f"step {step.id!r} is not replayable: its results may differ after a restart or under another cut"
        )
    if costs is not None:
        letters = costs.steps[step.id].letters.records if step.id in costs.steps else 0
        if letters:
            found.append(f"step {step.id!r} refused {letters:,} records as dead letters")
        too_large = costs.streams[step.id].too_large if step.id in costs.streams else 0
        if too_large:
            found.append(
                f"{too_large:,} records of {step.id!r} are too large for a batch, and cannot be sent"
            )
    return found


def _untyped(channel: str, fields: Sequence[str], costs: Costs | None) -> str:
    names = ", ".join(repr(name) for name in fields)
    cost = ""
    if costs is not None and channel in costs.streams and costs.streams[channel].records:
        stream = costs.streams[channel]
        each, whole = stream.untyped_bytes / stream.records, stream.bytes_per_record
        cost = f" ({each:.1f} bytes a record before compression; the whole record has {whole:.1f} after it)"
    return f"channel {channel!r} says nothing of what is in {names}, sent as msgpack{cost}: declare its type"


def cut_name(graph: Graph, cut: Cut) -> str:
    """What to give to `--cut` for this cut: the lowest steps on the edge, `cloud` for the sources alone."""
    moved = [s for s in graph.steps if s.id in cut.edge and s.inputs and s.tier != "edge"]
    lowest = [s.id for s in moved if not any(c.id in cut.edge for c in graph.consumers(s.id))]
    return ",".join(lowest) or "cloud"
