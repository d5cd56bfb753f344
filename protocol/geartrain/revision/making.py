"""A revision made of a plan: each step, channel and source as plain data.

Called when a flow is submitted, and by an agent when it starts. Guarantees: it is a pure function of
its arguments. The name of the instance does not come in. Nor do options of sources and sinks, which devices
and databases have of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from geartrain.errors import SchemaError
from geartrain.graph.graph import Graph, Grouping, Input, Step, is_of_system, key_step
from geartrain.operators.sink import SinkOperator
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan
from geartrain.revision.code import Code
from geartrain.revision.plain import plain
from geartrain.revision.revision import ChannelForm, Revision, SourceForm, StepForm
from geartrain.schema import Note, derive
from geartrain.schema.logical import type_text


def revision_of(
    flow: str,
    plan: Plan,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    code: Code | None = None,
    version: str = "",
) -> Revision:
    """The revision of a plan.

    flow: `module:name`, "" for a graph that was made by hand; settings: those of the submit, by step id (they
    are in the plan's graph already); code: what `code_of(flow)` gave; version: Geartrain's.
    """
    graph, edge = plan.graph, plan.cut.edge
    up = [(channel, False) for channel in plan.channels]
    down = [(channel, True) for channel in plan.down]
    return Revision(
        flow=flow,
        steps=tuple(_step(graph, step, on_edge=step.id in edge) for step in graph.steps),
        channels=tuple(
            ChannelForm(
                channel.id,
                channel.schema.to_json(),
                tuple(sorted(channel.sources)),
                goes_down,
                upgrades=() if goes_down or is_of_system(channel.id) else _upgrades(channel.kind),
            )
            for channel, goes_down in (*up, *down)
        ),
        sources=tuple(
            _source(step.id, step.operator)
            for step in graph.steps
            if isinstance(step.operator, SourceOperator)
        ),
        cut=tuple(plan.edge),
        settings={step: {name: plain(v) for name, v in of.items()} for step, of in (settings or {}).items()},
        code=code or Code(),
        geartrain=version,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        notes={step.id: notes for step in graph.steps if (notes := _notes(step))},
    )


def _notes(step: Step) -> dict[str, Note]:
    try:
        return {} if step.out is None else derive(step.out).notes
    except SchemaError:  # a type that never leaves its tier
        return {}


def _step(graph: Graph, step: Step, *, on_edge: bool) -> StepForm:
    keys = key_step(graph, step.id) if step.out is not None else None
    operator: Any = step.operator
    return StepForm(
        step.id,
        operator.kind,
        tuple(map(_input, step.inputs)),
        "edge" if on_edge else "cloud",
        record="" if step.out is None else _record(step.out),
        key="" if keys is None else _key(keys.operator),
        state=_state(operator),
        options=_options(operator),
        migrates=_migrates(operator),
    )


def _migrates(operator: Any) -> tuple[str, ...]:
    task = getattr(operator, "task", None)
    if task is None:
        return ()
    from geartrain.tasks.migration import former_states  # it imports what tasks need

    return tuple(former_states(task))


def _upgrades(kind: Any) -> tuple[str, ...]:
    if not isinstance(kind, type) or not vars(kind).get("upgrade"):
        return ()
    from geartrain.schema.upgrading import former_schemas  # most flows have none

    return tuple(schema.layout for schema in former_schemas(kind))


def _input(source: Input) -> str:
    return source.step if source.grouping is Grouping.FORWARD else f"{source.step}:{source.grouping.value}"


def _record(kind: Any) -> str:
    try:
        return derive(kind).to_json()
    except SchemaError:  # a type that never leaves its tier
        return type_text(kind)


def _key(operator: Any) -> str:
    field = getattr(operator, "field", None)
    return str(field) if field else str(plain(getattr(operator, "function", operator)))


def _state(operator: Any) -> str:
    """The type of what a step keeps for a key, where the user has named one."""
    task = getattr(operator, "task", None)
    kind = getattr(operator, "state", None) if task is None else task.state
    return "" if kind is None else type_text(kind)


def _options(operator: Any) -> dict[str, Any]:
    """What is set of a step, apart from its types. Of sources and sinks it is what others rest on alone."""
    if isinstance(operator, SourceOperator):
        return {}  # among the sources
    if isinstance(operator, SinkOperator):
        table = operator.table
        return {"sink": type(table).__name__, "name": table.name, "key": list(table.key)}
    if not isinstance(operator, msgspec.Struct):
        return {"": plain(operator)}
    form = plain(operator)
    options = {name: value for name, value in form.items() if name} if isinstance(form, dict) else {}
    options.pop("state", None)  # said as a type
    if "task" in options and options.get("keeps") == []:
        del options["keeps"]  # as releases wrote the step that knew no such option
    task = options.pop("task", None)
    if task is not None:
        options |= {"task": task} if isinstance(task, str) else {**task, "task": task[""]}
        options.pop("", None)
    return options


def _source(step: str, operator: SourceOperator) -> SourceForm:
    source = operator.goes_on
    return SourceForm(
        step,
        type(source).__name__,
        source.bounded,
        source.keeps_order,
        source.since_1970,
        operator.partitioned_by or "",
        operator.devices,
    )
