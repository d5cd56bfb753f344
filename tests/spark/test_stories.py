"""Each operator in a little story, with rows that were worked out by hand: on a device, and on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from geartrain import Context, Record, SourceStream, Stream, Task, agg
from tests.reference.errors import INTEGER_DIVIDED
from tests.spark import window_stories
from tests.spark.stories import Book, Story, Told
from tests.spark.story_data import TWO, WORDS, Reading, reading, us

BOOK = Book()
BATCHES = 10
"""As many as no story has rows: most rows of one come in a micro-batch of their own."""
story = BOOK.story


# --- one record at a time ---


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
    dead=[("share", INTEGER_DIVIDED)],
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
    return words.key_by(str, name="same").aggregate("seen", out=Seen, n=agg.count())


@story(
    sold=[(1, "nut"), (9, "nut"), (12, "bolt")],
    names=[(5, "nut: M8"), (10, "nut: M10")],
    gives=[(1, "nut"), (9, "nut: M8"), (12, "bolt")],
)
def broadcast_looks_up_what_is_known_at_the_time(sold: Stream[str], names: Stream[str]) -> Stream[str]:
    def named(item: str, table: Mapping[Any, str]) -> str:
        return table.get(item, item)

    return sold.broadcast("named", names, named, key=lambda name: name.split(":")[0])


# --- the tellings ---

BOOK.stories += window_stories.BOOK.stories


def by_name(one: Any) -> str:
    return one.name if isinstance(one, Story) else ""


@pytest.mark.parametrize("one", BOOK.stories, ids=by_name)
def test_on_a_device(one: Story) -> None:
    assert one.told_here().sorted() == one.gives.sorted()


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    return BOOK.told_on_spark(spark, tmp_path_factory.mktemp("stories"), batches=BATCHES)


@pytest.mark.parametrize("one", BOOK.stories, ids=by_name)
def test_on_spark(one: Story, on_spark: dict[str, Told]) -> None:
    assert on_spark[one.name].sorted() == one.gives.sorted()
