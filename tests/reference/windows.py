"""The reference's windows: all records of a key are at hand, so a window is the list of those within.

Aggregates are worked out anew from each such list. Reduce and fold are walked record by record, because a
record for which their function raises is in none of its windows.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

from geartrain.declarations.zones import ZoneRules
from geartrain.graph.graph import Step
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.keys import encode_key
from tests.reference import aggregates
from tests.reference.rows import Answer, Row, by_key, conform, normal, number
from tests.reference.tasks import STATE_INT_MAX

Span = tuple[int, int]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def _hints(declared: Any) -> dict[str, Any]:
    return typing.get_type_hints(declared)


def windows_of(window: Any, time: int) -> list[Span]:
    """All (start, end) that `time` lies in, earliest first, of a window that is no session."""
    kind = type(window).__name__
    if kind == "Global":
        return [(START_OF_TIME, END_OF_TIME)]
    if kind == "Calendar":
        return [_calendar(window, time)]
    every = window.every_us if kind == "Sliding" else window.size_us
    found = []
    start = (time - window.offset_us) // every * every + window.offset_us
    while start + window.size_us > time:
        found.append((start, start + window.size_us))
        start -= every
    return found[::-1]


_DAY = 86_400_000_000


def _calendar(window: Any, time: int) -> Span:
    """The day, week or month that `time` lies in: each begins when a clock shows its first midnight first."""
    rules = ZoneRules.from_text(window.rules)
    ends = [*rules.times, 2**62]
    stretches = list(zip([-(2**62), *rules.times], ends, rules.offsets, strict=True))
    [offset] = [offset for start, end, offset in stretches if start <= time < end]
    day = _EPOCH.date() + timedelta(days=(time + offset) // _DAY)

    def number(day: date) -> int:
        weeks = (
            day.toordinal() - 1 - int(window.begins)
        ) // 7  # the first of January of the year 1 was a Monday
        numbers = {"day": day.toordinal(), "week": weeks, "month": day.year * 12 + day.month}
        return numbers[str(window.unit)]

    def reached(day: date) -> int:
        while number(day - timedelta(days=1)) == number(day):
            day -= timedelta(days=1)
        midnight = (day - _EPOCH.date()).days * _DAY
        at = [(max(start, midnight - offset), end) for start, end, offset in stretches]
        return min(start for start, end in at if start < end)

    def following(day: date) -> date:
        return next(d for n in range(1, 32) if number(d := day + timedelta(days=n)) > number(day))

    while reached(day) > time:
        day -= timedelta(days=1)
    while reached(following(day)) <= time:
        day = following(day)
    return reached(day), reached(following(day))


def _filled(window: Any, rows: list[Row]) -> Iterator[tuple[Span, list[Row]]]:
    """Each window with its records; `rows` are of one key, in order."""
    held: dict[Span, list[Row]] = {}
    if type(window).__name__ == "Session":
        runs: list[list[Row]] = []
        for row in rows:
            if runs and row.time < runs[-1][-1].time + window.gap_us:
                runs[-1].append(row)
            else:
                runs.append([row])
        held = {(run[0].time, run[-1].time + window.gap_us): run for run in runs}
    else:
        for row in rows:
            for span in windows_of(window, row.time):
                held.setdefault(span, []).append(row)
    yield from held.items()


def _place(step: Step, key: Any, span: Span, revision: int, time: int) -> Row:
    path = encode_key(key) + encode_key((span[0],)) + number(revision)
    return Row(time, step.id, 0, path, None, key)


def _end(span: Span) -> int:
    return min(span[1], END_OF_TIME) - 1


def _moments(early: Any, span: Span, rows: list[Row]) -> list[tuple[int, list[Row]]]:
    """(event time, records) of each result of a window, the final one last."""
    found: list[tuple[int, list[Row]]] = []
    if type(early).__name__ == "EveryRecords":
        counts = range(early.count, len(rows) + 1, early.count)
        found = [(rows[count - 1].time, rows[:count]) for count in counts]
    elif early is not None:
        begin = 0 if span[0] == START_OF_TIME else span[0]
        bounds = {begin + ((r.time - begin) // early.every_us + 1) * early.every_us for r in rows}
        bounds = {bound for bound in bounds if bound < min(span[1], END_OF_TIME)}
        found = [(bound - 1, [r for r in rows if r.time < bound]) for bound in sorted(bounds)]
    return [*found, (_end(span), rows)]


def _extracted(operator: Any, row: Row) -> dict[str, Any]:
    """The value of each aggregate; raises where one cannot be had."""
    window = getattr(operator, "window", None)
    gap = type(window).__name__ == "Sliding" and not windows_of(window, row.time)  # then nothing is added
    return {name: _value(spec, row, added=not gap) for name, spec in operator.fields.items()}


def _value(spec: Any, row: Row, *, added: bool) -> Any:
    value = _fitting(spec.selector, row)
    if spec.give is not None:
        _fitting(spec.give, row)
    return None if value is None else aggregates.takes(spec, value, row, added=added)


def _fitting(selector: Any, row: Row) -> Any:
    value = aggregates.select(selector, row)
    if selector.function is None:
        return value
    declared = _hints(selector.function).get("return", Any)
    if declared is not Any:
        return normal(declared, value)
    if value is None:
        return None
    if type(value) not in (bool, int, float, str, bytes, datetime):
        raise TypeError("not a value")
    return normal(type(value), value)


def _built(step: Step, rows: list[tuple[Row, dict[str, Any]]], span: Span | None, revision: int) -> Any:
    """The result of a group of records."""
    operator: Any = step.operator
    given: dict[str, Any] = {}
    for name, spec in operator.fields.items():
        everything = type(spec.aggregate).__name__ == "CountAll"
        values = [(values[name], row) for row, values in rows]
        given[name] = aggregates.result(spec, [v for v in values if everything or v[0] is not None])
    key = rows[0][0].key
    for name, index in operator.key_fields:
        given[name] = key if index is None else key[index]
    hints = _hints(step.out)
    if span is not None:
        edges = {"window_start": span[0], "window_end": span[1], "revision": revision}
        for name in edges.keys() & (hints.keys() - given.keys()):
            moment = hints[name] is datetime
            given[name] = _EPOCH + timedelta(microseconds=edges[name]) if moment else edges[name]
    return step.out(**given)


def _accepted(step: Step, rows: list[Row], answer: Answer) -> Iterator[tuple[Row, dict[str, Any]]]:
    for row in rows:
        try:
            yield row, _extracted(step.operator, row)
        except Exception:
            answer.refuse(step.id, row)


def window_aggregate(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """The result of every window, the early ones before it."""
    operator: Any = step.operator
    results: list[Row] = []
    for records in by_key(inputs[0]):
        values = {row.order: (row, found) for row, found in _accepted(step, records, answer)}
        for span, rows in _filled(operator.window, [row for row, _ in values.values()]):
            for revision, (time, within) in enumerate(_moments(operator.early, span, rows)):
                place = _place(step, records[0].key, span, revision, time)
                gap = getattr(operator.window, "gap_us", None)  # a session ends where it is known to
                known = span if gap is None else (span[0], within[-1].time + gap)
                try:
                    built = _built(step, [values[row.order] for row in within], known, revision)
                except Exception:
                    answer.refuse(step.id, place)
                else:
                    results.append(place.with_value(built))
    return conform(step.id, step.out, results, answer)


def aggregate(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """The result so far, with every record."""
    results: list[Row] = []
    for records in by_key(inputs[0]):
        held: list[tuple[Row, dict[str, Any]]] = []
        for row, values in _accepted(step, records, answer):
            try:
                results.append(row.child(0, _built(step, [*held, (row, values)], None, 0)))
            except Exception:
                answer.refuse(step.id, row)
            else:
                held.append((row, values))
    return conform(step.id, step.out, results, answer)


_NOTHING = object()


def _stepped(step: Step, state: Any, value: Any) -> Any:
    """The state of a reduce or fold after one more record; raises where there is none."""
    operator: Any = step.operator
    if type(operator).__name__.endswith("Reduce"):
        return value if state is _NOTHING else normal(step.out, operator.function(state, value))
    fresh = operator.make() if state is _NOTHING else copy.deepcopy(state)
    return normal(operator.state, operator.function(fresh, value), STATE_INT_MAX)


def _shown(step: Step, state: Any) -> Any:
    show = getattr(step.operator, "result", None)
    return copy.deepcopy(state) if show is None else show(copy.deepcopy(state))


def reduce_or_fold(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """The state so far, with every record."""
    results: list[Row] = []
    for records in by_key(inputs[0]):
        state: Any = _NOTHING
        for row in records:
            try:
                changed = _stepped(step, state, row.value)
                shown = _shown(step, changed)
            except Exception:
                answer.refuse(step.id, row)
            else:
                state = changed
                results.append(row.child(0, shown))
    return conform(step.id, step.out, results, answer)


def window_reduce_or_fold(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """The state of every window when it ends."""
    operator: Any = step.operator
    results: list[Row] = []
    for records in by_key(inputs[0]):
        states: dict[Span, Any] = {}
        for row in records:
            before = list(_spans(operator.window, row.time, states))
            try:
                changed = [_stepped(step, states.get(old, _NOTHING), row.value) for old, _ in before]
            except Exception:
                answer.refuse(step.id, row)
                continue
            for (old, new), state in zip(before, changed, strict=True):
                states.pop(old, None)
                states[new] = state
        for span, state in states.items():
            place = _place(step, records[0].key, span, 0, _end(span))
            try:
                results.append(dataclasses.replace(place, value=_shown(step, state), key=None))
            except Exception:
                answer.refuse(step.id, place)
    return conform(step.id, step.out, results, answer)


def _spans(window: Any, time: int, known: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """The windows of a record, each as it was before the record and as it is with it."""
    if type(window).__name__ != "Session":
        yield from ((span, span) for span in windows_of(window, time))
        return
    grown = (time, time + window.gap_us)
    last = max(known, default=None)
    if last is not None and time < last[1]:
        yield last, (last[0], grown[1])
    else:
        yield grown, grown
