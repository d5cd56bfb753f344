"""`gear plan`: where each step of a flow runs and why, what crosses, and, if measured, what that costs.

A measurement runs the flow on its input in this process and writes nothing. Guarantees: an illegal pin is
refused before anything runs. `--json` gives everything that is printed for people, and more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import write_private
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import ConfigError
from geartrain.fleet.selectors import ALL
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import Graph, Step
from geartrain.operators.sink import check_sinks
from geartrain.operators.source import SourceOperator, check_sources, is_in_cloud
from geartrain.planning import Channel, Plan, legal_cuts, make_plan
from geartrain.planning.cuts import Cut, Reason, TooManyCutsError
from geartrain.planning.shuffles import stage_numbers
from geartrain.planning.splitting import with_partials
from geartrain.schema import Schema, derive
from geartrain_client.cli.plan_text import print_plan
from geartrain_client.planning.cost import CAPACITY, Costs, CutCost, StreamCost
from geartrain_client.planning.drawing import draw
from geartrain_client.planning.measure import Measurement
from geartrain_client.planning.reasons import (
    cut_name,
    estimated_reasons,
    estimated_sent,
    reasons,
    told,
    warnings,
)
from geartrain_client.terminal.screen import notices, print_json

MEASURE_S = 10.0
"""How long is measured where costs are asked for and `--measure` says nothing."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is asked for. cut: as of `--cut`; measure_s: how long, None for as long as the others need;
    capacity: share of a core; compare: list the legal cuts; svg: a file for the drawing.
    """

    cut: str = "auto"
    measure_s: float | None = None
    capacity: float | None = None
    compare: bool = False
    svg: Path | None = None
    as_json: bool = False

    @property
    def measures(self) -> bool:
        """Whether anything that is asked for has to be measured."""
        return self.measure_s is not None or self.capacity is not None or self.compare


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement, and what each legal cut costs by it, fewest bytes first."""

    costs: Costs
    compared: tuple[CutCost, ...]


def show_plan(flow: str, options: PlanOptions, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the plan; raises `GeartrainError`."""
    graph = load_flow(flow).graph().with_options(settings)
    check_sources(graph)
    check_sinks(graph, is_complete=False)
    graph = with_partials(graph)  # what any cut may have is measured
    plan, measured = make_plan(graph, options.cut), None
    if options.measures:
        measured = _measured(graph, options)
        if options.cut == "auto":
            plan = make_plan(graph, "auto", measured.costs)
        measured = replace(measured, costs=measured.costs.whole_again(graph, plan.graph))
    described = describe_plan(plan, options, measured)
    if options.svg is not None:
        _write(options.svg, draw(plan, None if measured is None else measured.costs, _reasons(described)))
    if options.as_json:
        print_json(described)
    else:
        print_plan(described)
    if options.svg is not None:
        notices().print(f"drawn to {options.svg}")


def _measured(graph: Graph, options: PlanOptions) -> Measured:
    cuts = _listed(graph, options)
    capacity = CAPACITY if options.capacity is None else options.capacity
    seconds = MEASURE_S if options.measure_s is None else options.measure_s
    notices().print(f"measuring, for {seconds:g} s at most")
    costs = replace(measure(graph, seconds), capacity=capacity)
    if not has_records(graph, costs):
        names = ", ".join(source.id for source in graph.sources())
        raise ConfigError(
            f"--measure: {names} gave no record within {costs.wall_s:.1f} s, so nothing is known: give "
            "it more time, or an input with --set"
        )
    return Measured(costs, tuple(costs.compare(graph, cuts)))


def _listed(graph: Graph, options: PlanOptions) -> list[Cut]:
    """The legal cuts; none where nobody needs them, or where they are too many and nobody asked for them."""
    if not options.compare and options.cut != "auto":
        return []
    try:
        return legal_cuts(graph)
    except TooManyCutsError:
        if options.compare:
            raise
        return []


def measure(graph: Graph, seconds: float) -> Costs:
    """Run `graph` on its input for so long, or to its end; raises what stops a flow."""
    measurement = Measurement(
        graph, cpu_time=time.process_time, clock=SystemClock(), randomness=SystemRandomness()
    )
    return asyncio.run(measurement.run(seconds))


def has_records(graph: Graph, costs: Costs) -> bool:
    """Whether any source of `graph` gave a record while it was measured."""
    return any(costs.steps[source.id].records for source in graph.sources())


def _write(path: Path, drawing: str) -> None:
    try:
        write_private(path, drawing)
    except OSError as error:
        raise ConfigError(f"--svg {path}: the file cannot be written: {error.strerror}") from None


def _reasons(described: Mapping[str, Any]) -> dict[str, str]:
    return {step["id"]: step["reason"] for step in described["steps"]}


def describe_plan(
    plan: Plan, options: PlanOptions | None = None, measured: Measured | None = None
) -> dict[str, Any]:
    """The plan as JSON values; raises `PlacementError` for a graph that cannot run in the cloud."""
    options = options or PlanOptions()
    stages = stage_numbers(plan.graph, frozenset(plan.cloud))
    costs = None if measured is None else measured.costs
    why = {step.id: plan.reason(step) for step in plan.graph.steps}
    if measured is not None and options.cut == "auto":
        why = reasons(plan, measured.costs, measured.compared)
    elif options.cut == "auto":
        why = estimated_reasons(plan)
    return {
        "flow": plan.graph.name,
        "asked": options.cut,
        "cut": cut_name(plan.graph, plan.cut),
        "steps": [_step(plan, step, stages[step.id], why[step.id], costs) for step in plan.graph.steps],
        "channels": [_channel(plan, channel, costs) for channel in plan.channels],
        "down": [_channel(plan, channel, costs) for channel in plan.down],
        "warnings": warnings(plan, costs),
        **({} if measured is None else {"measured": _summary(plan, measured)}),
        **({"estimated": _estimated(plan)} if measured is None and options.cut == "auto" else {}),
        **({"cuts": _cuts(plan, measured)} if measured is not None and options.compare else {}),
    }


def _step(plan: Plan, step: Step, stage: int | None, why: Reason, costs: Costs | None) -> dict[str, Any]:
    on_edge, operator = step.id in plan.cut.edge, step.operator
    schema = None if step.out is None else derive(step.out)
    described: dict[str, Any] = {
        "id": step.id,
        "kind": operator.kind,
        "inputs": [one.step for one in step.inputs],
        "out": "" if schema is None else schema.name,
        "fields": [] if schema is None else _fields(schema),
        "tier": "edge" if on_edge and not is_in_cloud(step) else "cloud",
        "stage": None if on_edge else stage,
        "engine": None if on_edge else "embedded" if operator.stateful else "chain",
        "rule": why.rule.value,
        "reason": told(why),
    }
    if isinstance(operator, SourceOperator):
        described["devices"] = operator.devices or ALL
    if costs is not None and step.id in costs.steps:
        cost = costs.steps[step.id]
        described |= {
            "records": cost.records,
            "records_per_s": costs.per_s(cost.records),
            "cpu_us_per_record": cost.cpu_us_per_record,
            "cpu_share": costs.per_s(cost.cpu_s),
        }
    return described


def _channel(plan: Plan, channel: Channel, costs: Costs | None) -> dict[str, Any]:
    cost = {} if costs is None else _stream(costs.of_channel(channel.id, plan.cut), costs)
    return {
        "id": channel.id,
        "record": channel.schema.name,
        "fields": _fields(channel.schema),
        "sources": sorted(channel.sources),
        **cost,
    }


def _stream(stream: StreamCost, costs: Costs) -> dict[str, Any]:
    return {
        "records": stream.records,
        "records_per_s": costs.per_s(stream.records),
        "bytes": stream.bytes,
        "bytes_per_record": stream.bytes_per_record,
        "bytes_per_s": costs.per_s(stream.bytes),
    }


def _summary(plan: Plan, measured: Measured) -> dict[str, Any]:
    costs = measured.costs
    chosen = costs.of_cut(plan.graph, plan.cut)
    of_cloud = costs.of_cut(plan.graph, make_plan(plan.graph, "cloud").cut)
    return {
        "wall_s": costs.wall_s,
        "span": costs.span(plan.graph),
        "seconds": costs.seconds,
        "paced": costs.paced,
        "ended": costs.ended,
        "capacity": costs.capacity,
        "legal_cuts": len(measured.compared) or None,
        **_of_cut(plan.graph, chosen),
        "cloud_bytes": of_cloud.bytes,
    }


def _estimated(plan: Plan) -> dict[str, float]:
    """What this cut, `edge` and `cloud` are estimated to send for one record of each source, bytes."""
    graph = with_partials(plan.graph)
    edge, cloud = (make_plan(graph, name).cut for name in ("edge", "cloud"))
    cuts = {"bytes": plan.cut, "edge_bytes": edge, "cloud_bytes": cloud}
    return {name: estimated_sent(graph, cut) for name, cut in cuts.items()}


def _of_cut(graph: Graph, cost: CutCost) -> dict[str, Any]:
    endless = cost.records_per_s_max == float("inf")
    return {
        "bytes": cost.bytes,
        "bytes_per_s": cost.bytes_per_s,
        "cpu_share": cost.cpu_share,
        "records_per_s_max": None if endless else cost.records_per_s_max,
    }


def _cuts(plan: Plan, measured: Measured) -> list[dict[str, Any]]:
    graph = with_partials(plan.graph)
    return [
        {
            "cut": cut_name(graph, one.cut),
            "edge": [step.id for step in graph.steps if step.id in one.cut.edge],
            **_of_cut(graph, one),
            "within_capacity": one.cpu_share <= measured.costs.capacity,
            "chosen": one.cut == plan.cut,
        }
        for one in measured.compared
    ]


def _fields(schema: Schema) -> list[dict[str, str]]:
    return [
        {"name": field.name, "type": field.type_name, **msgspec.to_builtins(field.note)}
        for field in schema.fields
    ]
