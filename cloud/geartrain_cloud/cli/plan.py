"""`gear plan`: where each step of a flow runs and why, and what crosses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geartrain.graph import Step
from geartrain.loading import load_flow
from geartrain.placement import Plan, make_plan
from geartrain.schema import Schema, derive
from geartrain_cloud.cli.screen import print_json, results, table_of
from geartrain_cloud.spark.compile import engine
from geartrain_cloud.spark.stages import stage_numbers


def show_plan(flow: str, cut: str, settings: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the plan; raises `GeartrainError`."""
    plan = make_plan(load_flow(flow).graph().with_options(settings), cut)
    described = describe_plan(plan)
    if as_json:
        print_json(described)
        return
    out = results()
    steps = [
        [s["id"], s["kind"], ", ".join(s["inputs"]), s["out"], s["tier"], _in_spark(s), s["reason"]]
        for s in described["steps"]
    ]
    heads = ["step", "kind", "reads", "puts out", "tier", "in Spark", "because"]
    out.print(table_of(f"Flow {plan.graph.name}", heads, steps))
    channels = [
        [c["id"], ", ".join(f"{f['name']}: {f['type']}" for f in c["fields"]), ", ".join(c["sources"])]
        for c in described["channels"]
    ]
    out.print(table_of("Channels: what crosses from the devices", ["channel", "fields", "from"], channels))


def _in_spark(step: Mapping[str, Any]) -> str:
    return "" if step["stage"] is None else f"stage {step['stage']}, {step['engine']}"


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; raises `PlacementError` for a graph that cannot run in the cloud."""
    stages = stage_numbers(plan.graph, frozenset(plan.cloud))
    return {
        "flow": plan.graph.name,
        "steps": [_step(plan, step, stages[step.id]) for step in plan.graph.steps],
        "channels": [
            {
                "id": channel.id,
                "record": channel.schema.name,
                "fields": _fields(channel.schema),
                "sources": sorted(channel.sources),
            }
            for channel in plan.channels
        ],
    }


def _step(plan: Plan, step: Step, stage: int) -> dict[str, Any]:
    on_edge, operator = step.id in plan.cut.edge, step.operator
    return {
        "id": step.id,
        "kind": operator.kind,
        "inputs": [one.step for one in step.inputs],
        "out": "" if step.out is None else derive(step.out).name,
        "tier": "edge" if on_edge else "cloud",
        "stage": None if on_edge else stage,
        "engine": None if on_edge else engine(operator.kind, stateful=operator.stateful),
        "reason": plan.reason(step),
    }


def _fields(schema: Schema) -> list[dict[str, str]]:
    return [{"name": field.name, "type": field.type_name} for field in schema.fields]
