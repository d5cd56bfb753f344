"""Each operator in a little story, with rows that were worked out by hand: on a device, and on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from geartrain import (
    AggregateSpec,
    Context,
    Mergeable,
    Record,
    SourceStream,
    State,
    Stream,
    Task,
    count,
    distinct,
    every_records,
    every_time,
    first,
    global_,
    last,
    maximum,
    mean,
    minimum,
    quantile,
    session,
    sliding,
    top_n,
    total,
    tumbling,
    variance,
)
from tests.spark.stories import Book, Story, Told

BOOK = Book()
story = BOOK.story


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


class Reading(Record):
    """What a sensor measured."""

    sensor: str
    value: int


def reading(sensor: str, value: int) -> Reading:
    return Reading(sensor, value)


# --- one record at a time ---

WORDS = [(1, "to be"), (2, "or"), (3, "not")]


@story(words=WORDS, gives=[(1, 5), (2, 2), (3, 3)])
def map_makes_one_of_each(words: Stream[str]) -> Stream[int]:
    return words.map(len, name="length", out=int)


@story(words=WORDS, gives=[(1, "be"), (1, "to"), (2, "or"), (3, "not")])
def flat_map_makes_any_number_of_each(words: Stream[str]) -> Stream[str]:
    return words.flat_map(str.split, name="single", out=str)


@story(words=WORDS, gives=[(2, "or"), (3, "not")])
def filter_lets_some_through(words: Stream[str]) -> Stream[str]:
    return words.filter(lambda word: " " not in word, name="single")


@story(
    numbers=[(1, 4), (2, 0), (3, 5)],
    gives=[(1, 25), (3, 20)],
    dead=[("share", "ZeroDivisionError: integer division or modulo by zero")],
)
def what_a_function_refuses_is_a_dead_letter(numbers: Stream[int]) -> Stream[int]:
    return numbers.map(lambda number: 100 // number, name="share", out=int)


@story(
    numbers=[(1, 4), (2, 9), (3, -1)],
    gives={"low": [(1, 4)], "high": [(2, 9)]},
    dead=[("side_low", "ValueError: there is no branch 'negative', only low, high")],
)
def split_gives_each_branch_its_own(numbers: Stream[int]) -> Mapping[str, Stream[int]]:
    def side(number: int) -> str:
        return "negative" if number < 0 else "low" if number < 5 else "high"

    return numbers.split("side", side, ("low", "high"))


@story(east=[(1, 3), (4, 6)], west=[(2, 5)], gives=[(1, 3), (2, 5), (4, 6)])
def merge_puts_streams_together(east: Stream[int], west: Stream[int]) -> Stream[int]:
    return east.merge("both", west)


@story(numbers=[(1, 40), (2, 7)], gives=[(1, 5), (2, 3)])
def iterate_goes_on_until_it_is_done(numbers: Stream[int]) -> Stream[int]:
    return numbers.iterate("odd", lambda n: n // 2, until=lambda n: n % 2 == 1, rounds_max=64)


@story(words=WORDS, gives=WORDS)
def log_changes_nothing(words: Stream[str]) -> Stream[str]:
    return words.log("seen", every=2)


@story(
    levels=[(10, 3), (4, 5), (12, 6)],
    gives={"on_time": [(10, 3), (12, 6)], "late": [(4, 50)]},
)
def late_records_have_a_stream_of_their_own(levels: SourceStream[int]) -> Mapping[str, Stream[int]]:
    return {
        "on_time": levels.filter(lambda level: True, name="every"),
        "late": levels.late().map(lambda level: 10 * level, name="tenfold", out=int),
    }


@story(levels=[(10, 3), (4, 5), (12, 6)], gives=[(10, 3), (12, 6)], late=[("levels", "5")])
def late_records_go_to_a_table_else(levels: SourceStream[int]) -> Stream[int]:
    return levels


# --- one key at a time ---

TWO = [
    (10, reading("a", 1)),
    (20, reading("b", 5)),
    (30, reading("a", 2)),
    (40, reading("a", -4)),
    (50, reading("b", 6)),
]


class Sum(Task[Reading, Reading]):
    """Adds up."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Reading, ctx: Context[Reading, int]) -> None:
        ctx.state += value.value
        ctx.emit(reading(value.sensor, ctx.state))
        if value.value < 0:
            raise ValueError("below zero")


@story(
    readings=TWO,
    gives=[(10, reading("a", 1)), (20, reading("b", 105)), (30, reading("a", 3)), (50, reading("b", 111))],
    dead=[("sum", "ValueError: below zero")],
)
def process_keeps_a_state_for_each_key(readings: Stream[Reading]) -> Stream[Reading]:
    return readings.key_by("sensor").process("sum", Sum(), initial={"b": 100})


@story(
    readings=[(10, reading("a", 1)), (20, reading("b", 1)), (35, reading("a", 2)), (70, reading("a", 3))],
    gives=[
        (10, reading("a", 1)),
        (20, reading("b", 1)),
        (35, reading("a", 3)),
        (70, reading("a", 3)),
    ],
)
def process_forgets_a_key_after_its_time_to_live(readings: Stream[Reading]) -> Stream[Reading]:
    return readings.key_by("sensor").process("sum", Sum(), ttl=us(30))


class Silence(Task[Reading, Reading]):
    """Says which sensor has said nothing for 20, and again after 5 more."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Reading, ctx: Context[Reading, int]) -> None:
        ctx.state = 0
        ctx.notify_at(ctx.event_time + 20)

    def on_notify(self, time: int, ctx: Context[Reading, int]) -> None:
        ctx.state += 1
        ctx.emit(reading(str(ctx.key), ctx.state))
        if ctx.state < 2:
            ctx.notify_at(time + 5)


@story(
    readings=[(10, reading("a", 1)), (12, reading("b", 1)), (60, reading("a", 1))],
    gives=[
        (30, reading("a", 1)),
        (32, reading("b", 1)),
        (35, reading("a", 2)),
        (37, reading("b", 2)),
        (80, reading("a", 1)),
        (85, reading("a", 2)),
    ],
)
def process_is_woken_by_its_timers(readings: Stream[Reading]) -> Stream[Reading]:
    return readings.key_by("sensor").process("silence", Silence())


def joined(left: str, right: str) -> str:
    return left + right


@story(words=[(30, "c"), (10, "a"), (20, "b")], bound_us=25, gives=[(10, "a"), (20, "ab"), (30, "abc")])
def keyed_steps_see_their_records_in_order(words: Stream[str]) -> Stream[str]:
    return words.key_by(lambda word: 0, name="all").reduce("spelled", joined)


@story(
    readings=TWO,
    gives=[
        (10, reading("a", 1)),
        (20, reading("b", 5)),
        (30, reading("a", 2)),
        (40, reading("a", 2)),
        (50, reading("b", 6)),
    ],
)
def reduce_keeps_one_record_of_each_key(readings: Stream[Reading]) -> Stream[Reading]:
    return readings.key_by("sensor").reduce("highest", lambda x, y: x if x.value > y.value else y)


@story(words=WORDS, gives=[(1, 5), (2, 7), (3, 10)])
def fold_builds_something_else(words: Stream[str]) -> Stream[int]:
    return words.key_by(lambda word: 0, name="all").fold("letters", int, lambda n, word: n + len(word))


class Seen(Record):
    """How many there were."""

    key: str
    n: int


@story(
    words=[(1, "hot"), (2, "cold"), (3, "hot")],
    gives=[(1, Seen("hot", 1)), (2, Seen("cold", 1)), (3, Seen("hot", 2))],
)
def aggregate_without_a_window_says_how_it_stands(words: Stream[str]) -> Stream[Seen]:
    return words.key_by(str, name="same").aggregate("seen", out=Seen, n=count())


@story(
    sold=[(1, "nut"), (9, "nut"), (12, "bolt")],
    names=[(5, "nut: M8"), (10, "nut: M10")],
    gives=[(1, "nut"), (9, "nut: M8"), (12, "bolt")],
)
def broadcast_looks_up_what_is_known_at_the_time(sold: Stream[str], names: Stream[str]) -> Stream[str]:
    def named(item: str, table: Mapping[Any, str]) -> str:
        return table.get(item, item)

    return sold.broadcast("named", names, named, key=lambda name: name.split(":")[0])


# --- windows ---


class Window(Record):
    """How many records of a key a window held, and their sum."""

    sensor: str
    window_start: int
    n: int
    x: int
    revision: int = 0


HELD: dict[str, Any] = {"n": count(), "x": total("value")}
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
    windows = readings.key_by("sensor").window(global_())
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


class Spread(Mergeable[int, Extent, int]):
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


def of_each(name: str, spec: AggregateSpec, *gives: float) -> None:
    """A story of one aggregate, in two windows: of 3, 1, 8, 4 and 4, and of 6 alone."""

    def build(numbers: Stream[int]) -> Stream[Got]:
        windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
        return windows.aggregate(name, out=Got, x=spec)

    build.__name__ = f"{name}_of_a_window"
    numbers = [(1, 3), (2, 1), (3, 8), (4, 4), (5, 4), (12, 6)]
    story(numbers=numbers, gives=list(zip((9, 19), map(Got, gives), strict=True)))(build)


of_each("count", count(), 5, 1)
of_each("total", total(), 20, 6)
of_each("mean", mean(), 4.0, 6.0)
of_each("variance", variance(), 5.2, 0.0)
of_each("minimum", minimum(), 1, 6)
of_each("maximum", maximum(), 8, 6)
of_each("first", first(), 3, 6)
of_each("last", last(), 4, 6)
of_each("distinct", distinct(), 4, 1)
of_each("spread", Spread().of(), 7, 0)


@story(numbers=[(1, 3), (2, 1), (3, 8), (4, 4)], gives=[(9, GotList([8, 4]))])
def top_n_lists_the_largest(numbers: Stream[int]) -> Stream[GotList]:
    windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
    return windows.aggregate("top", out=GotList, x=top_n(lambda number: number, 2))


@story(numbers=[(1, 10), (2, 500), (3, 9)], gives=[(9, 10)])
def a_quantile_is_exact_to_a_hundredth(numbers: Stream[int]) -> Stream[int]:
    windows = numbers.key_by(lambda number: 0, name="all").window(tumbling(us(10)))
    middle = windows.aggregate("middle", out=Got, x=quantile(None, 0.5))
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
    return left.join("pair", right, pair, between=(us(0), us(40)))


@story(opened=OPENED, closed=CLOSED, gives=[(15, "aa"), (70, "b?")])
def a_left_interval_join_waits_for_what_may_come(opened: Stream[str], closed: Stream[str]) -> Stream[str]:
    left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same")
    return left.join("pair", right, pair, between=(us(0), us(20)), how="left")


# --- the tellings ---


def by_name(one: Any) -> str:
    return one.name if isinstance(one, Story) else ""


@pytest.mark.parametrize("one", BOOK.stories, ids=by_name)
def test_on_a_device(one: Story) -> None:
    assert one.told_here().sorted() == one.gives.sorted()


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    return BOOK.told_on_spark(spark, tmp_path_factory.mktemp("stories"), rows_max=2)


@pytest.mark.parametrize("one", BOOK.stories, ids=by_name)
def test_on_spark(one: Story, on_spark: dict[str, Told]) -> None:
    assert on_spark[one.name].sorted() == one.gives.sorted()
