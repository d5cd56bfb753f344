"""A naive reference interpreter of flows: sort, then plain Python over lists. The oracle of the property
tests.

Shares nothing with the runtime but the declarations (graph, operators' fields, users' functions and tasks)
and the encoding of keys: no batches, no watermarks, no state store, no codec, no cut. Slow on purpose, and
short enough to be read and believed; the larger families of operators stand in modules of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from geartrain.graph.graph import Graph, Step
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.source import Reject
from tests.reference import down_steps, joins, tasks, windows
from tests.reference.rows import Answer, Row, conform, in_order, same_bits

__all__ = ["Answer", "Row", "interpret", "same_bits"]

Items = Mapping[str, Sequence[Any]]
_EARLIEST_US = int(datetime(100, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
Family = Callable[[Step, list[list[Row]], Answer], list[Row]]


def interpret(graph: Graph, inputs: Mapping[str, Items], bounds_us: Mapping[str, int]) -> Answer:
    """The answer of `graph` to `inputs`: by source step, by split name, a list of (time, value) or Reject."""
    answer = Answer({}, Counter(), Counter())
    streams: dict[str, list[Row]] = {}
    for step in graph.steps:
        above = [streams[i.step] for i in step.inputs]
        if not step.inputs:
            rows, late = born(step, inputs[step.id], bounds_us[step.id], answer)
            streams[step.id] = conform(step.id, step.out, rows, answer)
            readers = [s for s in graph.consumers(step.id) if type(s.operator).__name__ == "Late"]
            if not readers:
                answer.late.update((step.id, *row.order) for row in late)
            for reader in readers:
                streams[reader.id] = conform(step.id, step.out, late, answer)
        elif step.id in streams:
            continue  # a late stream, filled where its source was born
        elif step.out is None:
            answer.sinks[step.id] = in_order(above[0])
        else:
            streams[step.id] = FAMILIES[type(step.operator).__name__](step, above, answer)
    return answer


def born(step: Step, splits: Items, bound_us: int, answer: Answer) -> tuple[list[Row], list[Row]]:
    """(records on time, late records), not yet checked against their type."""
    rows, late = [], []
    operator: Any = step.operator
    for split, items in splits.items():
        name = f"{step.id}/{split}"  # the step comes before the split, wherever that is read
        highest: int | None = None
        for number, item in enumerate(items):
            if isinstance(item, Reject):
                answer.refuse(step.id, Row(item.event_time or 0, name, number, b"", None))
                continue
            row = Row(item[0], name, number, b"", item[1])
            if type(row.time) is not int or not _EARLIEST_US <= row.time < END_OF_TIME:
                answer.refuse(step.id, Row(0, name, number, b"", None))
            elif row.time < 0 and operator.source.since_1970:
                answer.refuse(step.id, row)
            elif highest is not None and row.time < highest - bound_us:
                late.append(row)
            else:
                rows.append(row)
                highest = row.time if highest is None else max(highest, row.time)
    return rows, late


def _each(work: Callable[[Any, Row], list[Row]]) -> Family:
    """A stateless step: each record by itself, refused when `work` raises; outputs must fit."""

    def run(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
        rows: list[Row] = []
        for row in inputs[0]:
            try:
                rows += work(step.operator, row)
            except Exception:
                answer.refuse(step.id, row)
        return conform(step.id, step.out, rows, answer)

    return run


def _flat_map(operator: Any, row: Row) -> list[Row]:
    return [row.child(index, value) for index, value in enumerate(list(operator.function(row.value)))]


def _filter(operator: Any, row: Row) -> list[Row]:
    return [row.with_value(row.value)] if operator.predicate(row.value) else []


def _key_by(operator: Any, row: Row) -> list[Row]:
    key = operator.function(row.value)
    for part in key if isinstance(key, tuple) else (key,):
        if not isinstance(part, (str, int, bool, bytes)):
            raise TypeError("not a key")
    encode_key(key)  # raises for an int beyond 64 bits and for half a surrogate
    return [Row(row.time, row.name, row.number, row.path, row.value, key)]


def _iterate(operator: Any, row: Row) -> list[Row]:
    value = row.value
    for _ in range(operator.rounds_max):
        value = operator.body(value)
        if operator.until is not None and operator.until(value):
            break
    return [row.with_value(value)]


def _copies(operator: Any, row: Row) -> list[Row]:
    return [row.child(number, row.value) for number in range(operator.count)]


def _key_by_copy(operator: Any, row: Row) -> list[Row]:
    return [Row(row.time, row.name, row.number, row.path, row.value, row.path[-1])]


def _merge(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    return [row.child(port, row.value) for port, rows in enumerate(inputs) for row in rows]


def _branch(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    operator: Any = step.operator
    rows: list[Row] = []
    for row in inputs[0]:
        try:
            name = operator.function(row.value)
        except Exception:
            name = None
        if name == operator.name:
            rows.append(row.with_value(row.value))
        elif name not in operator.branches and operator.name == operator.branches[0]:
            answer.refuse(step.id, row)
    return rows


def _same(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    return inputs[0]


FAMILIES: dict[str, Family] = {
    "Map": _each(lambda operator, row: [row.with_value(operator.function(row.value))]),
    "FlatMap": _each(_flat_map),
    "Filter": _each(_filter),
    "KeyBy": _each(_key_by),
    "Iterate": _each(_iterate),
    "Copies": _each(_copies),
    "KeyByCopy": _each(_key_by_copy),
    "Stateless": _each(tasks.stateless),
    "Merge": _merge,
    "Branch": _branch,
    "Log": _same,
    "Order": _same,
    "Deal": down_steps.deal,
    "Process": tasks.process,
    "Aggregate": windows.aggregate,
    "Reduce": windows.reduce_or_fold,
    "Fold": windows.reduce_or_fold,
    "WindowAggregate": windows.window_aggregate,
    "WindowReduce": windows.window_reduce_or_fold,
    "WindowFold": windows.window_reduce_or_fold,
    "WindowJoin": joins.window_join,
    "IntervalJoin": joins.interval_join,
    "Broadcast": joins.broadcast,
}
