"""What streams are expected to weigh where nothing was measured: default selectivities, and sizes of types.

Beside the planner, for `auto`. Every program that plans a flow comes to the same figures: they are a function
of the graph alone, of its operators, its windows and the types of its records. Only their proportions mean
anything. Each source is taken to give one record, and each of its keys one in `EVERY_US`, unless the flow
says how often. A window then gives one result for all records that lie in it. `SELECTIVITY` says of the other
kinds of steps how many records leave for each that comes in. The sizes are what a value takes on the wire,
compressed, in the examples of this repository.
"""

from __future__ import annotations

from typing import Any

from geartrain.declarations.calendars import DAY_US, Calendar
from geartrain.graph.graph import Graph, Step
from geartrain.schema import FieldType, Schema, derive

SELECTIVITY = {"filter": 0.5, "late": 0.01}
"""Records out for each that comes in, by kind of operator; 1 for all others. Nothing is known of what a task
or a flat_map gives, so that they are taken to give one for one.
"""
EVERY_US = 1_000_000
"""From one record of a key to the next, microseconds, where a source does not say."""
SESSION = 0.5
"""Sessions for each record: nothing is known of the times at which none comes."""
RESULTS_MIN = 0.01
"""Results of a window for each record, at the least, as of one that never ends before its source does."""
WINDOWED = ("window_aggregate", "partial_aggregate", "window_reduce", "window_fold")
CALENDAR_DAYS = {"day": 1, "week": 7, "month": 30}
ROW_BYTES = 1.0
"""Of a record beside its fields: its event time and origin."""
BYTES = {
    FieldType.BOOL: 0.25,
    FieldType.INT64: 2.0,
    FieldType.FLOAT64: 4.0,
    FieldType.STR: 2.0,
    FieldType.BYTES: 8.0,
    FieldType.DATETIME: 1.0,
}
"""Of a value, by its type."""
NESTED_BYTES = 16.0
"""Of a list, a dict, a record in a record, or who knows what."""
SCALE = 1_000
"""Estimates are whole numbers of so many parts of a byte."""


def estimated_bytes(graph: Graph) -> dict[str, int]:
    """What the output of each step weighs, for one record of each source, in parts of a byte (`SCALE`)."""
    rows = estimated_rows(graph)
    outs = ((step.id, step.out) for step in graph.steps if step.out is not None)
    return {step: round(SCALE * rows[step] * row_bytes(derive(out))) for step, out in outs}


def estimated_rows(graph: Graph) -> dict[str, float]:
    """How many records leave each step that has an output, for one record of each source."""
    rows, gaps_us = dict[str, float](), dict[str, float]()
    for step in graph.steps:
        if step.out is not None:
            above = [one.step for one in step.inputs]
            gap_us = min((gaps_us[one] for one in above), default=_source_gap_us(step))
            rows[step.id] = _rows(step, [rows[one] for one in above], gap_us)
            gaps_us[step.id] = max(gap_us, _results_gap_us(_declared(step)))
    return rows


def _source_gap_us(step: Step) -> float:
    """From one record of a key of a source to the next, microseconds."""
    return getattr(step.operator, "every_us", 0) or EVERY_US


def _declared(step: Step) -> Any:
    """The operator of a step, of a partial aggregate the whole one."""
    return getattr(step.operator, "whole", step.operator)


def _rows(step: Step, above: list[float], gap_us: float) -> float:
    """How many records leave a step, from those that come by each input; gap_us: from one record of a key to
    the next.
    """
    operator: Any = step.operator
    if not above:
        return 1.0
    if operator.kind == "branch":
        return above[0] / len(operator.branches)
    if operator.kind in ("interval_join", "window_join"):
        return max(above)
    if operator.kind == "broadcast":
        return above[0]
    if operator.kind in WINDOWED:
        return sum(above) * _results(_declared(step), gap_us)
    return sum(above) * SELECTIVITY.get(operator.kind, 1.0)


def _results(operator: Any, gap_us: float) -> float:
    """How many results a window gives for each of its records."""
    # an agent whose flow has no windows does not load them
    from geartrain.declarations.windows import EveryRecords, EveryTime, Global, Session, Sliding

    window, early = operator.window, getattr(operator, "early", None)
    found = 0.0
    if isinstance(early, EveryRecords):
        found = 1 / early.count
    elif isinstance(early, EveryTime):
        found = min(1.0, gap_us / early.every_us)
    if isinstance(window, Session):
        found += SESSION
    elif isinstance(window, Sliding):
        found += min(gap_us, window.size_us) / window.every_us
    elif not isinstance(window, Global):
        found += min(1.0, gap_us / _results_gap_us(operator))
    return max(found, RESULTS_MIN)


def _results_gap_us(operator: Any) -> float:
    """From one result of an operator's windows to the next of its key, 0 where their length is not known."""
    window = getattr(operator, "window", None)
    if window is None:
        return 0
    from geartrain.declarations.windows import Sliding, Tumbling  # only for a flow that has windows

    if isinstance(window, Tumbling):
        return window.size_us
    if isinstance(window, Sliding):
        return window.every_us
    return CALENDAR_DAYS[window.unit] * DAY_US if isinstance(window, Calendar) else 0


def row_bytes(schema: Schema) -> float:
    """What a record is expected to take on the wire."""
    fields = schema.fields
    return ROW_BYTES + sum(NESTED_BYTES if f.logical.startswith("nested(") else BYTES[f.type] for f in fields)
