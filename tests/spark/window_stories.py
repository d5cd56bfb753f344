"""Stories of windows, of the aggregates that are computed of them, and of joins."""

from __future__ import annotations

from typing import Any

from geartrain import (
    Record,
    State,
    Stream,
    agg,
    every_records,
    every_time,
    global_window,
    session,
    sliding,
    tumbling,
)
from tests.spark.stories import Book
from tests.spark.story_data import TWO, WORDS, Reading, reading, us

BOOK = Book()
story = BOOK.story


# --- windows ---


class Window(Record):
    """How many records of a key a window held, and their sum."""

    sensor: str
    window_start: int
    n: int
    x: int
    revision: int = 0


HELD: dict[str, Any] = {"n": agg.count(), "x": agg.sum("value")}
"""What is computed of each window."""


@story(
    readings=[(-5, reading("a", 7)), *TWO],
    gives=[
        (-1, Window("a", -30, 1, 7)),
        (29, Window("a", 0, 1, 1)),
        (29, Window("b", 0, 1, 5)),
        (59, Window("a", 30, 2, -2)),
        (59, Window("b", 30, 1, 6)),
    ],
)
def tumbling_windows_follow_each_other(readings: Stream[Reading]) -> Stream[Window]:
    windows = readings.key_by("sensor").window(tumbling(us(30)))
    return windows.aggregate("sums", out=Window, **HELD)


@story(
    readings=TWO,
    gives=[
        (19, Window("a", -20, 1, 1)),
        (39, Window("a", 0, 2, 3)),
        (39, Window("b", 0, 1, 5)),
        (59, Window("a", 20, 2, -2)),
        (59, Window("b", 20, 2, 11)),
        (79, Window("a", 40, 1, -4)),
        (79, Window("b", 40, 1, 6)),
    ],
)
def sliding_windows_overlap(readings: Stream[Reading]) -> Stream[Window]:
    windows = readings.key_by("sensor").window(sliding(us(40), us(20)))
    return windows.aggregate("sums", out=Window, **HELD)


@story(
    readings=[*TWO, (60, reading("a", 8))],
    gives=[
        (29, Window("a", 10, 1, 1)),  # the next one is not less than 20 away
        (39, Window("b", 20, 1, 5)),
        (59, Window("a", 30, 2, -2)),
        (69, Window("b", 50, 1, 6)),
        (79, Window("a", 60, 1, 8)),
    ],
)
def a_session_ends_when_nothing_comes_for_a_while(readings: Stream[Reading]) -> Stream[Window]:
    windows = readings.key_by("sensor").window(session(us(20)))
    return windows.aggregate("visits", out=Window, **HELD)


END = 7_258_118_400_000_000 - 1
"""The last microsecond that there is."""


@story(readings=TWO, gives=[(END, reading("a", -1)), (END, reading("b", 11))])
def the_global_window_ends_with_the_sources(readings: Stream[Reading]) -> Stream[Reading]:
    windows = readings.key_by("sensor").window(global_window())
    return windows.reduce("sum", lambda left, right: reading(left.sensor, left.value + right.value))


@story(words=WORDS, gives=[(9, "to be/or/not")])
def a_window_can_be_folded(words: Stream[str]) -> Stream[str]:
    def noted(words: list[str], word: str) -> list[str]:
        return [*words, word]

    def said(words: list[str]) -> str:
        return "/".join(words)

    windows = words.key_by(lambda word: 0, name="all").window(tumbling(us(10)))
    return windows.fold("said", list, noted, result=said, state=list[str])


@story(
    readings=TWO,
    gives=[
        (30, Window("a", 0, 2, 3, 0)),
        (50, Window("b", 0, 2, 11, 0)),
        (99, Window("a", 0, 3, -1, 1)),
        (99, Window("b", 0, 2, 11, 1)),
    ],
)
def early_results_come_with_every_second_record(readings: Stream[Reading]) -> Stream[Window]:
    windows = readings.key_by("sensor").window(tumbling(us(100)))
    return windows.aggregate("sums", out=Window, early=every_records(2), **HELD)


@story(
    readings=TWO,
    gives=[
        (24, Window("a", 0, 1, 1, 0)),
        (24, Window("b", 0, 1, 5, 0)),
        (49, Window("a", 0, 3, -1, 1)),
        (74, Window("b", 0, 2, 11, 1)),
        (99, Window("a", 0, 3, -1, 2)),
        (99, Window("b", 0, 2, 11, 2)),
    ],
)
def early_results_come_as_time_passes(readings: Stream[Reading]) -> Stream[Window]:
    windows = readings.key_by("sensor").window(tumbling(us(100)))
    return windows.aggregate("sums", out=Window, early=every_time(us(25)), **HELD)


# --- aggregates ---


class Got(Record):
    """What an aggregate gave."""

    x: float


class GotList(Record):
    """What an aggregate gave, where it gives several."""

    x: list[int]


class Extent(State):
    """Of some values."""

    low: int = 2**62
    high: int = -(2**62)


class Spread(agg.Aggregate[int, Extent, int]):
    """The distance of the largest value from the smallest."""

    accumulator = Extent

    def create(self) -> Extent:
        return Extent()

    def add(self, acc: Extent, value: int, time: int, origin: object) -> Extent:
        return Extent(min(acc.low, value), max(acc.high, value))

    def merge(self, left: Extent, right: Extent) -> Extent:
        return Extent(min(left.low, right.low), max(left.high, right.high))

    def result(self, acc: Extent) -> int:
        return acc.high - acc.low


def of_each(name: str, spec: agg.AggregateSpec, *gives: float) -> None:
    """A story of one aggregate, in two windows: of 3, 1, 8, 4 and 4, and of 6 alone."""

    def build(numbers: Stream[int]) -> Stream[Got]:
        windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
        return windows.aggregate(name, out=Got, x=spec)

    build.__name__ = f"{name}_of_a_window"
    numbers = [(1, 3), (2, 1), (3, 8), (4, 4), (5, 4), (12, 6)]
    story(numbers=numbers, gives=list(zip((9, 19), map(Got, gives), strict=True)))(build)


of_each("count", agg.count(), 5, 1)
of_each("total", agg.sum(), 20, 6)
of_each("mean", agg.mean(), 4.0, 6.0)
of_each("variance", agg.variance(), 5.2, 0.0)
of_each("minimum", agg.min(), 1, 6)
of_each("maximum", agg.max(), 8, 6)
of_each("first", agg.first(), 3, 6)
of_each("last", agg.last(), 4, 6)
of_each("distinct", agg.count_distinct(), 4, 1)
of_each("spread", Spread().of(), 7, 0)


@story(numbers=[(1, 3), (2, 1), (3, 8), (4, 4)], gives=[(9, GotList([8, 4]))])
def top_n_lists_the_largest(numbers: Stream[int]) -> Stream[GotList]:
    windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
    return windows.aggregate("top", out=GotList, x=agg.top_n(lambda number: number, 2))


@story(numbers=[(1, 10), (2, 500), (3, 9)], gives=[(9, 10)])
def a_quantile_is_exact_to_a_hundredth(numbers: Stream[int]) -> Stream[int]:
    windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
    middle = windows.aggregate("middle", out=Got, x=agg.quantile(None, 0.5))
    return middle.map(lambda got: round(got.x), name="rounded", out=int)


# --- joins ---

OPENED, CLOSED = [(10, "a"), (50, "b")], [(15, "a"), (90, "b")]


def pair(opened: str, closed: str | None) -> str:
    return f"{opened}{closed or '?'}"


@story(opened=OPENED, closed=CLOSED, gives=[(15, "aa")])
def a_windowed_join_pairs_what_shares_a_window(opened: Stream[str], closed: Stream[str]) -> Stream[str]:
    left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same")
    return left.join("pair", right, pair, within=tumbling(us(30)))


@story(opened=OPENED, closed=CLOSED, gives=[(15, "aa"), (59, "b?")])
def a_left_windowed_join_keeps_who_is_alone(opened: Stream[str], closed: Stream[str]) -> Stream[str]:
    left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same")
    return left.join("pair", right, pair, within=tumbling(us(30)), how="left")


@story(opened=OPENED, closed=CLOSED, gives=[(15, "aa"), (90, "bb")])
def an_interval_join_pairs_what_is_near(opened: Stream[str], closed: Stream[str]) -> Stream[str]:
    left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same")
    return left.join("pair", right, pair, lower=us(0), upper=us(40))


@story(opened=OPENED, closed=CLOSED, gives=[(15, "aa"), (70, "b?")])
def a_left_interval_join_waits_for_what_may_come(opened: Stream[str], closed: Stream[str]) -> Stream[str]:
    left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same")
    return left.join("pair", right, pair, lower=us(0), upper=us(20), how="left")
