"""The reference's joins: two nested loops over all records of a key, and a table for each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.graph.graph import Step
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from tests.reference.rows import Answer, Row, by_key, conform, in_order
from tests.reference.windows import windows_of

_Reaches = Callable[[Row, Row], bool]


def window_join(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """Pairs that have a window in common; a left row alone leaves when its window ends."""
    operator: Any = step.operator
    window = operator.window

    def together(left: Row, right: Row) -> bool:
        return bool(set(windows_of(window, left.time)) & set(windows_of(window, right.time)))

    def alone(left: Row) -> int:
        return max((end - 1 for _, end in windows_of(window, left.time)), default=left.time)

    return _join(step, inputs, answer, together, alone)


def interval_join(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """Pairs whose right time lies in the interval around the left one."""
    operator: Any = step.operator
    after, before = operator.after_us, operator.before_us
    return _join(
        step,
        inputs,
        answer,
        lambda left, right: left.time + after <= right.time <= left.time + before,
        lambda left: max(left.time, left.time + before),
    )


def _join(
    step: Step, inputs: list[list[Row]], answer: Answer, reaches: _Reaches, alone: Callable[[Row], int]
) -> list[Row]:
    operator: Any = step.operator
    rights = {encode_key(rows[0].key): rows for rows in by_key(inputs[1])}
    rows: list[Row] = []
    for lefts in by_key(inputs[0]):
        for left in lefts:
            found = [r for r in rights.get(encode_key(left.key), []) if reaches(left, r)]
            at = (left.time, left.name, left.number, left.path)
            results: list[tuple[int, tuple[Any, ...], Any]] = [
                (max(left.time, r.time), (*at, r.time, r.name, r.number, r.path), r.value) for r in found
            ]
            if not found and operator.how == "left":
                results.append((min(alone(left), END_OF_TIME - 1), at, None))
            for time, path, right in results:
                place = Row(time, step.id, 0, encode_key(path), None)
                try:
                    rows.append(place.with_value(operator.function(left.value, right)))
                except Exception:
                    answer.refuse(step.id, place)
    return conform(step.id, step.out, rows, answer)


def broadcast(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """Each record with the small records up to its event time, the last of each key."""
    operator: Any = step.operator
    small = in_order(inputs[1])
    rows: list[Row] = []
    for row in inputs[0]:
        table: dict[Any, Any] = {}
        for at in small:
            if at.time <= row.time:
                table.pop(at.key, None)  # a table is read in the canonical order of what it holds
                table[at.key] = at.value
        try:
            rows.append(row.with_value(operator.function(row.value, table)))
        except Exception:
            answer.refuse(step.id, row)
    return conform(step.id, step.out, rows, answer)
