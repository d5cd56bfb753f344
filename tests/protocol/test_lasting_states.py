"""States that are encoded once a commit: the same cells as if every batch had saved them, and the same
results after any commit; and the form that a state has after a call.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from geartrain import Context, Flow, Record, State, Table, Task, agg, sliding, tumbling
from geartrain.graph.graph import Graph
from geartrain.graph.operator import Running, Services
from geartrain.operators.order import Order
from geartrain.records.batch import Batch, DeadLetter
from geartrain.runtime.fragment import Fragment
from geartrain.state.keyed import NEVER, DictBackend, KeyedState, due_of
from geartrain.state.state_type import StateType
from geartrain.testing import TestingSource, run_flow


class Reading(Record):
    sensor: str
    level: float


class Mean(Record):
    sensor: str
    window_end: int
    level: float


class Span(Record):
    first: datetime
    low: float


class Kept(State):
    label: str = ""
    count: int = 0
    level: float = 0.0
    at: datetime | None = None
    span: Span | None = None


def _us(count: int) -> timedelta:
    return timedelta(microseconds=count)


def _windowed(window: Any) -> Graph:
    flow = Flow("lasting")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    means = readings.key_by("sensor").window(window).aggregate("means", out=Mean, level=agg.mean("level"))
    means.sink("out", Table("means"))
    return flow.graph()


def pair(left: Reading, right: Reading) -> float:
    return left.level - right.level


def _joined() -> Graph:
    flow = Flow("lasting")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    left, right = readings.key_by("sensor", name="left"), readings.key_by("sensor", name="right")
    left.join("pairs", right, pair, lower=_us(1), upper=_us(25)).sink("out", Table("pairs"))
    return flow.graph()


def doubled(reading: Reading) -> Reading:
    return Reading(reading.sensor, reading.level * 2)


class Change(Task[Reading, float]):
    state = Kept

    def on_next(self, reading: Reading, ctx: Context[float, Kept]) -> None:
        ctx.emit(reading.level - ctx.state.level)
        ctx.state.level = reading.level


def _ordered() -> Graph:
    flow = Flow("lasting")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    both = readings.merge("both", readings.map(doubled))
    both.key_by("sensor").process("change", Change()).sink("out", Table("changes"))
    graph = flow.graph()
    assert "order" in {step.operator.kind for step in graph.steps}
    return graph


def _steps() -> list[tuple[Batch, int]]:
    """Batches of one record and of several of a key, each with the watermark behind it."""
    found, number = [], 0
    for start in range(0, 200, 10):
        rows = [(start + n * 3 % 10, f"s{n * start % 3}", n / 4) for n in range(1 + start % 7)]
        rows.sort()
        count = len(rows)
        values: list[Any] = [Reading(sensor, level) for _, sensor, level in rows]
        numbers = list(range(number, number + count))
        found.append((Batch(values, [time for time, _, _ in rows], ["d/readings"] * count, numbers), start))
        number += count
    return found


def _run(fragment: Fragment, steps: list[tuple[Batch, int]], saved: dict[Any, bytes]) -> list[Any]:
    out: list[Any] = []
    for batch, watermark in steps:
        fragment.feed("readings", batch)
        fragment.advance("readings", watermark)
        for parts in fragment.take().batches.get("out", []):
            out += zip(parts.times, parts.values, strict=True)
        for at, cell in fragment.changes().items():
            if cell is None:
                saved.pop(at, None)
            else:
                saved[at] = cell
    return out


GRAPHS = {
    "tumbling": _windowed(tumbling(_us(30))),
    "sliding": _windowed(sliding(_us(40), _us(10))),
    "joined": _joined(),
    "ordered": _ordered(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_fragment_that_resumes_at_any_commit_gives_the_same(name: str) -> None:
    graph, steps = GRAPHS[name], _steps()
    whole: dict[Any, bytes] = {}
    want = _run(Fragment(graph, [s.id for s in graph.steps]), steps, whole)
    assert len(want) >= 18
    for at in range(len(steps)):
        saved: dict[Any, bytes] = {}
        before = _run(Fragment(graph, [s.id for s in graph.steps]), steps[:at], saved)
        resumed = Fragment(graph, [s.id for s in graph.steps], DictBackend(dict(saved)))
        assert before + _run(resumed, steps[at:], saved) == want
        assert saved == whole


def test_a_cell_is_told_once_with_its_due_time_and_none_when_it_is_dropped() -> None:
    store = KeyedState(DictBackend())
    states = store.of_step("step", list[int], own=True, lasting=True)
    states.put(b"a", [1], 50)
    states.put(b"b", [2])
    states.save()
    states.at_hand(b"a").append(3)  # type: ignore[union-attr]
    states.keep(b"a")
    cells = store.changes()
    assert {key: due_of(cell or b"") for (_, key), cell in cells.items()} == {b"a": 50, b"b": NEVER}
    assert store.changes() == {}
    states.drop(b"a")
    states.save()
    assert store.changes() == {("step", b"a"): None}
    assert states.find(b"a") is None


def test_what_a_former_life_saved_wakes_nobody_once_the_state_is_at_hand() -> None:
    first = KeyedState(DictBackend())
    states = first.of_step("step", list[int], own=True, lasting=True)
    states.put(b"a", [1], 10)
    states.put(b"b", [2], 20)
    states.save()
    saved = {at: cell for at, cell in first.changes().items() if cell is not None}
    again = KeyedState(DictBackend(saved)).of_step("step", list[int], own=True, lasting=True)
    again.put(b"a", again.get(b"a"), 100)
    again.save()
    assert again.due(30) == [b"b"]
    assert again.due(100) == [b"b", b"a"]


def test_when_a_cell_is_due_is_known_as_put_as_saved_and_from_a_former_life() -> None:
    first = KeyedState(DictBackend())
    states = first.of_step("step", list[int], own=True, lasting=True)
    assert states.due_of(b"a") == NEVER
    states.put(b"a", [1], 10)
    states.put(b"b", [2])
    assert (states.due_of(b"a"), states.due_of(b"b")) == (10, NEVER)
    states.save()
    assert (states.due_of(b"a"), states.due_of(b"b")) == (10, NEVER)
    saved = {at: cell for at, cell in first.changes().items() if cell is not None}
    again = KeyedState(DictBackend(saved)).of_step("step", list[int], own=True, lasting=True)
    assert (again.due_of(b"a"), again.due_of(b"b"), again.due_of(b"c")) == (10, NEVER, NEVER)
    again.drop(b"a")
    assert again.due_of(b"a") == NEVER
    again.save()
    assert again.due_of(b"a") == NEVER


@pytest.mark.parametrize("lives", [1, 2])
def test_a_record_that_waits_leaves_in_time_whatever_comes_after_it(lives: int) -> None:
    """The earliest record of a key comes first, is saved, and later ones are held behind it."""
    saved: dict[tuple[str, bytes], bytes] = {}
    store = KeyedState(DictBackend(saved))

    def ordering() -> Running:
        return Order().open(Services("order", int, _refuse, store, inputs=(int,)))

    order = ordering()
    for time in (50, 70, 60):
        order.feed(Batch([time], [time], ["s"], [time], None, [b"k"]), 0)
        if lives == 2:
            saved.update((at, cell) for at, cell in store.changes().items() if cell is not None)
            store = KeyedState(DictBackend(saved))
            order = ordering()
    assert order.advance(50).values == []
    assert order.advance(51).values == [50]
    assert order.advance(61).values == [60]
    order.feed(Batch([65], [65], ["s"], [1], None, [b"k"]), 0)
    assert order.advance(66).values == [65]
    assert order.advance(71).values == [70]


def _refuse(letter: DeadLetter) -> None:
    raise AssertionError(letter)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Kept("a", 1, 2), Kept("a", 1, 2.0)),
        (Kept("ä", 1, 2.5), Kept("ä", 1, 2.5)),
        (
            Kept(span=Span(datetime(2020, 1, 1, tzinfo=UTC), 3)),
            Kept(span=Span(datetime(2020, 1, 1, tzinfo=UTC), 3.0)),
        ),
        (
            Kept(at=datetime(2020, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
            Kept(at=datetime(2020, 1, 1, tzinfo=UTC)),
        ),
        (Kept(at=datetime(2020, 1, 1, tzinfo=UTC, fold=1)), Kept(at=datetime(2020, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_state_has_after_a_call_the_form_that_it_has_after_a_restart(given: Kept, kept: Kept) -> None:
    kind = StateType("step", Kept)
    for _ in range(2):  # the second time, its types have been met
        fitted = kind.fitted(given)
        assert repr(fitted) == repr(kept) == repr(kind.load(kind.save(fitted)))
    assert kind.fitted(kept) is kept


def test_a_frozen_part_of_a_state_is_looked_at_again_once_it_is_another() -> None:
    class Fold(Task[Reading, str]):
        state = Kept

        def on_next(self, reading: Reading, ctx: Context[str, Kept]) -> None:
            ctx.emit(repr(ctx.state.span.low if ctx.state.span else None))
            low: Any = int(reading.level) if reading.level > 1 else reading.level
            ctx.state.span = Span(datetime(2020, 1, 1, tzinfo=UTC), low)

    flow = Flow("folds")
    items = [(n, Reading("a", float(n))) for n in range(5)]
    readings = flow.source("readings", TestingSource(items=items), out=Reading)
    readings.key_by("sensor").process("fold", Fold()).sink("out", Table("out"))
    assert [value for _, value in run_flow(flow).tables["out"]] == ["None", "0.0", "1.0", "2.0", "3.0"]
