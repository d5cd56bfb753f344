"""Windows and running aggregates of random records: order of arrival, batches and restarts never show."""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import (
    Flow,
    Record,
    State,
    agg,
    every_records,
    every_time,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.graph.graph import Graph
from geartrain.records.batch import Batch, Origin
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.state.keyed import DictBackend
from geartrain.testing import TestingSink, TestingSource

US = timedelta(microseconds=1)


class Car(Record):
    lane: str
    speed: float | None
    plate: int


class Everything(Record):
    key: str
    revision: int
    n: int
    known: int
    sum: float | None
    plates_sum: int
    mean: float | None
    variance: float | None
    low: float | None
    high: float | None
    first: float | None
    last: int
    best: list[float] | None
    best_plates: list[int] | None
    exact: int
    about: int
    median: float | None


EVERYTHING: dict[str, Any] = {
    "n": agg.count(),
    "known": agg.count("speed"),
    "sum": agg.sum("speed"),
    "plates_sum": agg.sum("plate"),
    "mean": agg.mean("speed"),
    "variance": agg.variance("speed"),
    "low": agg.min("speed"),
    "high": agg.max("speed"),
    "first": agg.first("speed"),
    "last": agg.last("plate"),
    "best": agg.top_n("speed", 2),
    "best_plates": agg.top_n("speed", 2, give="plate"),
    "exact": agg.count_distinct("speed"),
    "about": agg.count_distinct("plate", exact=False),
    "median": agg.quantile("speed"),
}


def plain(value: float) -> float:
    """With one NaN: which of two NaN a sum takes its sign from is up to the processor and the interpreter."""
    return value if value == value else math.nan


def faster(left: Car, right: Car) -> Car:
    if right.plate == 3:
        raise ValueError("not this one")
    return Car(left.lane, plain((left.speed or 0) + (right.speed or 0)), right.plate)


def weighed(state: float, car: Car) -> float:
    if car.plate == 3 and state > 1:
        raise ValueError("not this one")
    return plain(state / 2 + (car.speed or 0))


WINDOWS: list[tuple[str, Any, Any]] = [
    ("tumbling", tumbling(10 * US), None),
    ("sliding", sliding(10 * US, 4 * US, offset=US), None),
    ("gaps", sliding(3 * US, 10 * US), None),
    ("session", session(5 * US), None),
    ("global", global_window(), None),
    ("early_tumbling", tumbling(10 * US), every_records(2)),
    ("early_sliding", sliding(10 * US, 4 * US), every_time(3 * US)),
    ("early_session", session(5 * US), every_time(2 * US)),
    ("early_session_count", session(5 * US), every_records(3)),
    ("early_global", global_window(), every_time(7 * US)),
]


def flow_of(kind: str) -> Graph:
    flow = Flow("road")
    cars = flow.source("cars", TestingSource[Car](), out=Car).key_by("lane")
    if kind == "running":
        fields = {name: spec for name, spec in EVERYTHING.items() if name != "revision"}
        everything = msgspec.defstruct(
            "Running",
            [(f, t) for f, t in Everything.__annotations__.items() if f != "revision"],
            bases=(Record,),
            namespace={"__module__": __name__},
            frozen=True,
        )
        cars.aggregate("everything", out=everything, **fields).sink("a", TestingSink("a"))
        cars.reduce("faster", faster).sink("b", TestingSink("b"))
        cars.fold("weighed", float, weighed).sink("c", TestingSink("c"))
        return flow.graph()
    _, window, early = next(found for found in WINDOWS if found[0] == kind)
    windows = cars.window(window)
    windows.aggregate("everything", out=Everything, early=early, **EVERYTHING).sink("a", TestingSink("a"))
    windows.reduce("faster", faster).sink("b", TestingSink("b"))
    windows.fold("weighed", float, weighed).sink("c", TestingSink("c"))
    return flow.graph()


def outcome(graph: Graph, cars: list[tuple[int, Car]], random: Random | None) -> dict[str, Any]:
    """What leaves at each sink and as dead letters: at random None, all records in one batch in order."""
    rows = sorted(enumerate(cars), key=lambda row: row[1][0])
    if random is not None:
        rows.sort(key=lambda row: row[1][0] + random.randint(0, 20))
    steps = [step.id for step in graph.steps]
    saved: dict[tuple[str, bytes], bytes] = {}
    fragment = Fragment(graph, steps, DictBackend(dict(saved)))
    found: dict[str, set[Any]] = {}
    while True:
        size = len(rows) if random is None else random.randint(1, 4)
        batch, rows = rows[:size], rows[size:]
        fragment.feed("cars", as_batch(batch))
        # Behind every record that is still to come, as a split's watermark is.
        watermark = min((car[0] for _, car in rows), default=END_OF_TIME)
        if not rows or (random is not None and random.random() < 0.3):
            fragment.advance("cars", watermark)
        keep(found, fragment)
        if not rows:
            return {name: sorted(lines, key=repr) for name, lines in found.items()}
        if random is not None and random.random() < 0.2:
            for at, cell in fragment.changes().items():
                saved[at] = cell if cell is not None else b""
            saved = {at: cell for at, cell in saved.items() if cell}
            fragment = Fragment(graph, steps, DictBackend(dict(saved)))


def as_batch(rows: list[tuple[int, tuple[int, Car]]]) -> Batch:
    return Batch(
        [car for _, (_, car) in rows],
        [time for _, (time, _) in rows],
        ["cars"] * len(rows),
        [number for number, _ in rows],
    )


def keep(found: dict[str, set[Any]], fragment: Fragment) -> None:
    for name, batches in fragment.take().batches.items():
        for batch in batches:
            for row, value in enumerate(batch.values):
                line = (batch.times[row], batch.origin(row), msgspec.msgpack.encode(value))
                lines = found.setdefault(name, set())
                assert line[:2] not in {other[:2] for other in lines} or name == "_dead_letters"
                lines.add(line)


SPEEDS = st.one_of(
    st.none(),
    st.sampled_from([0.1, 0.2, 0.3, -0.0, 0.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324]),
    st.floats(-100, 100),
)
CARS = st.lists(
    st.tuples(
        st.integers(-25, 25),
        st.builds(Car, st.sampled_from(["left", "right"]), SPEEDS, st.integers(0, 5)),
    ),
    min_size=8,
    max_size=40,
)


@pytest.mark.parametrize("kind", ["running", *[name for name, _, _ in WINDOWS]])
def test_order_batches_and_restarts_never_show(kind: str) -> None:
    graph = flow_of(kind)

    @settings(max_examples=40, deadline=None)
    @given(CARS, st.integers(0, 2**32))
    def same(cars: list[tuple[int, Car]], seed: int) -> None:
        assert outcome(graph, cars, Random(seed)) == outcome(graph, cars, None)

    same()


class Tally(State):
    weight: float = 0


class Careless(agg.Aggregate[int, Tally, float]):
    """Puts ints where its state says float."""

    accumulator: ClassVar[Any] = Tally

    def create(self) -> Tally:
        return Tally(0)

    def add(self, acc: Tally, value: int, time: int, origin: Origin) -> Tally:
        return Tally(2**53 + value if acc.weight == 0 else acc.weight + 1)

    def merge(self, left: Tally, right: Tally) -> Tally:
        return Tally(left.weight + right.weight)

    def result(self, acc: Tally) -> float:
        return float(acc.weight)


def heavier(state: float, n: int) -> float:
    return 2**53 + n if state == 0 else state + 1


class Weight(Record):
    weight: float


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_int_in_the_place_of_a_float_is_a_float_at_once(size: int) -> None:
    flow = Flow("weights")
    numbers = flow.source("numbers", TestingSource[int](), out=int).key_by(lambda n: 0, name="all")
    numbers.aggregate("a", out=Weight, weight=Careless().of()).sink("a_out", TestingSink("a"))
    numbers.fold("b", float, heavier).sink("b_out", TestingSink("b"))
    numbers.window(global_window()).fold("c", float, heavier).sink("c_out", TestingSink("c"))
    windows = numbers.window(tumbling(10 * US))
    windows.aggregate("d", out=Weight, weight=Careless().of()).sink("d_out", TestingSink("d"))
    graph = flow.graph()
    fragment = Fragment(graph, [step.id for step in graph.steps])
    for at in range(0, 3, size):
        rows = [0, 1, 2][at : at + size]
        fragment.feed("numbers", Batch(rows, rows, ["numbers"] * len(rows), rows))
    fragment.advance("numbers", END_OF_TIME)
    found = fragment.take().batches
    last = {name: found[name][-1].values[-1] for name in ("a_out", "b_out", "c_out", "d_out")}
    # As floats, 2**53 + 1 is 2**53 again, each time.
    weight = 2.0**53
    assert last == {"a_out": Weight(weight), "b_out": weight, "c_out": weight, "d_out": Weight(weight)}
