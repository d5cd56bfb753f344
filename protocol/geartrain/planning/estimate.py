"""What streams are expected to weigh where nothing was measured: default selectivities, and sizes of types.

Beside the planner, for `auto`. Every program that plans a flow comes to the same figures: they are a function
of the graph alone, of its operators and the types of its records. Only their proportions mean anything. Each
source is taken to give one record. `SELECTIVITY` says how many leave a step for each that comes in, and the
sizes are what a value takes on the wire, compressed, in the examples of this repository.
"""

from __future__ import annotations

from typing import Any

from geartrain.graph.graph import Graph, Step
from geartrain.schema import FieldType, Schema, derive

SELECTIVITY = {
    "filter": 0.5,
    "late": 0.01,
    "window_aggregate": 0.5,
    "partial_aggregate": 0.5,
    "window_reduce": 0.5,
    "window_fold": 0.5,
}
"""Records out for each that comes in, by kind of operator; 1 for all others. Nothing is known of what a task
or a flat_map gives, so that they are taken to give one for one.
"""
GLOBAL = 0.01
"""The same of a window that never ends before its source does."""
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
    rows: dict[str, float] = {}
    for step in graph.steps:
        if step.out is not None:
            rows[step.id] = _rows(step, [rows[i.step] for i in step.inputs])
    return rows


def _rows(step: Step, above: list[float]) -> float:
    """How many records leave a step, from those that come by each input."""
    operator: Any = step.operator
    if not above:
        return 1.0
    if operator.kind == "branch":
        return above[0] / len(operator.branches)
    if operator.kind in ("interval_join", "window_join"):
        return max(above)
    if operator.kind == "broadcast":
        return above[0]
    window = getattr(getattr(operator, "whole", operator), "window", None)
    share = GLOBAL if type(window).__name__ == "Global" else SELECTIVITY.get(operator.kind, 1.0)
    return sum(above) * share


def row_bytes(schema: Schema) -> float:
    """What a record is expected to take on the wire."""
    fields = schema.fields
    return ROW_BYTES + sum(NESTED_BYTES if f.logical.startswith("nested(") else BYTES[f.type] for f in fields)
