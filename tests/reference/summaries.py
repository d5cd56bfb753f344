"""What the windows and aggregates of the random flows compute, and into which records."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from geartrain import Record, State, agg
from tests.reference.records import Reading


class Rolling(Record):
    """A result of all records so far."""

    key: str
    n: int
    x: float | None
    note: str | None
    top: list[float] | None


class Everything(Record):
    """A result of a global window."""

    key: str
    n: int
    x: float | None
    note: str | None
    top: list[float] | None
    revision: int


class Summary(Record):
    """A result of any other window."""

    key: str
    n: int
    x: float | None
    note: str | None
    top: list[float] | None
    revision: int
    window_start: int
    window_end: datetime


class Whole(Record):
    """A result of a window of whole numbers and texts."""

    key: str
    n: int
    x: float
    note: str | None
    revision: int
    window_start: int
    window_end: datetime


class Extent(State):
    """The accumulator of an aggregate of one's own."""

    values: list[float] = msgspec.field(default_factory=list)


class Spread(agg.Aggregate[float, Extent, float]):
    """The difference of the outermost values; refuses what is huge, and fails for three equal ones."""

    accumulator: ClassVar[Any] = Extent

    def create(self) -> Extent:
        return Extent()

    def add(self, acc: Extent, value: float, time: int, origin: object) -> Extent:
        if value > 1e200:
            raise ValueError("huge")
        return Extent(sorted([*acc.values, value]))

    def merge(self, left: Extent, right: Extent) -> Extent:
        return Extent(sorted([*left.values, *right.values]))

    def result(self, acc: Extent) -> float:
        if len(acc.values) == 3 and acc.values[0] == acc.values[-1]:
            raise ValueError("three of a kind")
        return acc.values[-1] - acc.values[0]


def half(r: Any) -> float | None:
    """An extractor: None for n = 2, raises for n = 5, an int now and then."""
    if r.n == 2:
        return None
    found: float = r.n // (r.n - 5) if r.n % 3 else r.x / 2
    return found


def anything(r: Any):  # type: ignore[no-untyped-def]
    """An extractor that says nothing of its type."""
    return {0: None, 1: True, 2: 1, 3: 1.0, 4: "text", 5: b"bytes", 6: -0.0, 7: 0, 8: [8]}.get(r.n, r.x)


def sample(r: Any) -> float | None:
    """For `Spread`, whose values are no NaN."""
    return None if r.x is None or r.x != r.x else r.x


NUMBERS: list[Any] = [
    agg.count(),
    agg.count(),
    agg.count("note"),
    agg.count(half),
    agg.sum("n"),
    agg.min("n"),
    agg.max("n"),
    agg.first("n"),
    agg.last("n"),
    agg.count_distinct("x"),
    agg.count_distinct(anything),
    agg.count_distinct("x", limit=2),
    agg.count_distinct(anything, limit=3),
    agg.count_distinct("x", exact=False),
    agg.count_distinct("note", exact=False),
]
SIZES: list[Any] = [
    agg.sum("x"),
    agg.sum("x"),
    agg.sum(half),
    agg.mean("x"),
    agg.mean("n"),
    agg.mean(half),
    agg.variance("x"),
    agg.variance("n"),
    agg.variance("x", ddof=1),
    agg.min("x"),
    agg.max("x"),
    agg.max(half),
    agg.first("x"),
    agg.last(half),
    agg.quantile("x", 0.5),
    agg.quantile("n", 0.9, error=0.1),
    agg.quantile(half, 0.0, error=0.001),
    Spread().of(sample),
]
NOTES: list[Any] = [agg.first("note"), agg.last("note"), agg.min("note"), agg.max("note")]
TOPS: list[Any] = [
    agg.top_n("x", 3),
    agg.top_n("x", 2, give="n"),
    agg.top_n(half, 2),
    agg.top_n("n", 3, give=half),
    agg.last(half),
]
KEY = agg.first("key")
WHOLE: list[Any] = [agg.count(), agg.count("note"), agg.count("x"), agg.sum("n"), agg.min("n"), agg.max("n")]
WHOLE_NOTES: list[Any] = [agg.min("note"), agg.max("note"), agg.max("key")]


def newest(state: Any, value: Any) -> Any:
    """A reduce that shows its order; raises for n = 4, and may not fit."""
    if value.n == 4:
        raise ValueError("four")
    return Reading(state.key, state.n * 3 + value.n, state.x * 0.5 + value.x, value.note)


def no_total() -> float:
    """Where a fold of floats begins."""
    return 0.0


def add_up(state: float, value: Any) -> float:
    """A fold of floats that shows its order; raises for n = 4."""
    if value.n == 4:
        raise ValueError("four")
    return state if value.n == 1 else state * 0.5 + value.x


def show(state: float) -> Reading:
    """What such a fold shows; raises for NaN."""
    if state != state:
        raise ValueError("not a number")
    return Reading("sum", int(state) % 7 if abs(state) < 1e18 else 2**70, state)


class Log(State):
    """A state that is changed in place."""

    seen: list[int] = msgspec.field(default_factory=list)
    size: float = 0.0


def write_down(state: Log, value: Any) -> Log:
    """A fold that changes its state in place before it raises for n = 6, and whose state may not fit."""
    state.seen.append(value.n)
    del state.seen[:-4]
    state.size = value.n
    if value.n == 6:
        raise ValueError("six")
    if value.n == 9:
        state.size = "nine"  # type: ignore[assignment]
    return state


def read_out(state: Log) -> Reading:
    """What such a fold shows."""
    return Reading("log", len(state.seen), state.size, repr(state.seen))
