"""A naive reference interpreter of flows: sort, then plain Python over lists. The oracle of the property
tests.

Shares nothing with the runtime but the declarations (graph, operators' functions, tasks): no batches, no
fused chains, no state store, no codec, no cut. Slow on purpose, and short enough to be read and believed.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import struct
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from geartrain.event_time import END_OF_TIME
from geartrain.graph import Graph, Step
from geartrain.source import Reject

Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A record with its place in canonical order."""

    time: int
    name: str
    number: int
    path: Path
    value: Any

    @property
    def order(self) -> tuple[int, str, int, Path]:
        return self.time, self.name, self.number, self.path


@dataclasses.dataclass
class Answer:
    """Rows by sink id; dead letters as (step, name, number, path), late records as (name, number)."""

    sinks: dict[str, list[Row]]
    dead: set[tuple[str, str, int, Path]]
    late: set[tuple[str, int]]


Items = Mapping[str, Sequence[Any]]


def interpret(graph: Graph, inputs: Mapping[str, Items], bounds_us: Mapping[str, int]) -> Answer:
    """The answer of `graph` to `inputs`: by source step, by split name, a list of (time, value) or Reject."""
    answer = Answer({}, set(), set())
    streams: dict[str, list[Row]] = {}
    for step in graph.steps:
        above = [row for i in step.inputs for row in streams[i.step]]
        if not step.inputs:
            streams[step.id] = _conform(
                step, _born(step, inputs[step.id], bounds_us[step.id], answer), answer
            )
        elif step.out is None:
            answer.sinks[step.id] = sorted(above, key=lambda r: r.order)
        else:
            streams[step.id] = _apply(step, above, answer, streams, graph)
    return answer


def _born(step: Step, splits: Items, bound_us: int, answer: Answer) -> list[Row]:
    rows = []
    for name, items in splits.items():
        highest: int | None = None
        for number, item in enumerate(items):
            if isinstance(item, Reject):
                answer.dead.add((step.id, name, number, ()))
                continue
            time, value = item
            if time >= END_OF_TIME:
                answer.dead.add((step.id, name, number, ()))
            elif highest is not None and time < highest - bound_us:
                answer.late.add((name, number))
            else:
                rows.append(Row(time, name, number, (), value))
                highest = time if highest is None else max(highest, time)
    return rows


def _apply(
    step: Step, above: list[Row], answer: Answer, streams: dict[str, list[Row]], graph: Graph
) -> list[Row]:
    operator: Any = step.operator
    rows: list[Row] = []
    if operator.kind == "process":
        return _conform(step, _process(step, operator.task, above, answer, graph), answer)
    for row in above:
        try:
            if operator.kind == "map":
                rows.append(dataclasses.replace(row, value=operator.function(row.value)))
            elif operator.kind == "flat_map":
                for index, child in enumerate(list(operator.function(row.value))):
                    rows.append(dataclasses.replace(row, value=child, path=(*row.path, index)))
            elif operator.kind == "filter":
                rows += [row] if operator.predicate(row.value) else []
            elif operator.kind == "key_by":
                _check_key(operator.function(row.value))
                rows.append(row)
            else:
                raise AssertionError(f"the reference does not know {operator.kind}")
        except AssertionError:
            raise
        except Exception:
            answer.dead.add((step.id, row.name, row.number, row.path))
    return _conform(step, rows, answer) if operator.kind in ("map", "flat_map") else rows


class _Context:
    def __init__(self, state: Any, time: int, key: Any) -> None:
        self.state, self.event_time, self.key, self.out = state, time, key, list[Any]()

    def emit(self, value: Any) -> None:
        self.out.append(value)


def _process(step: Step, task: Any, above: list[Row], answer: Answer, graph: Graph) -> list[Row]:
    key_of: Any = graph[step.inputs[0].step].operator
    states: dict[Any, Any] = {}
    rows: list[Row] = []
    for row in sorted(above, key=lambda r: r.order):
        key = key_of.function(row.value)
        at = (type(key), key)
        if at not in states:
            states[at] = None if task.state is None else task.state()
        context = _Context(copy.deepcopy(states[at]), row.time, key)
        try:
            task.on_next(row.value, context)
            if task.state is not None:
                context.state = _normal(task.state, context.state, int_max=2**64 - 1)
        except Exception:
            answer.dead.add((step.id, row.name, row.number, row.path))
            continue
        states[at] = context.state
        rows += [dataclasses.replace(row, value=v, path=(*row.path, i)) for i, v in enumerate(context.out)]
    return rows


def _check_key(key: Any) -> None:
    for part in key if isinstance(key, tuple) else (key,):
        if not isinstance(part, (str, int, bool, bytes)) or (
            isinstance(part, int) and not -(2**63) <= part < 2**63
        ):
            raise ValueError("not a key")


def _conform(step: Step, rows: list[Row], answer: Answer) -> list[Row]:
    kept = []
    for row in rows:
        try:
            kept.append(dataclasses.replace(row, value=_normal(step.out, row.value)))
        except (ValueError, OverflowError):
            answer.dead.add((step.id, row.name, row.number, row.path))
    return kept


def _normal(kind: Any, value: Any, int_max: int = 2**63 - 1) -> Any:
    """`value` as the declared type has it: an int where a float is due becomes one, anything else must fit.

    A state may hold what msgpack can: unsigned 64-bit integers too, and lists.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if type(value) is not kind:
            raise ValueError("another record type")
        hints = typing.get_type_hints(kind)
        return kind(*[_normal(hints[n], getattr(value, n), int_max) for n in kind.__struct_fields__])
    if typing.get_origin(kind) is list:
        return [_normal(typing.get_args(kind)[0], part, int_max) for part in value]
    options = typing.get_args(kind)
    if options:
        if value is None:
            return None
        (kind,) = [o for o in options if o is not type(None)]
        return _normal(kind, value, int_max)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError("another type")
    if kind is int and not -(2**63) <= value <= int_max:
        raise ValueError("does not fit")
    if kind is str:
        value.encode()
    return value


def same_bits(left: Any, right: Any) -> bool:
    """Equal to the last bit: NaN equals NaN, 0.0 differs from -0.0, 1 differs from 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, msgspec.Struct):
        return all(same_bits(getattr(left, n), getattr(right, n)) for n in left.__struct_fields__)
    if isinstance(left, datetime):
        return bool(left == right and left.utcoffset() == right.utcoffset())
    return bool(left == right)
