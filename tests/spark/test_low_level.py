"""The low-level face through the stages of a query, without Spark: every grouping is as in one process."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from geartrain import Context, Record, State, Table, Task
from geartrain.graph.graph import Graph
from geartrain.planning import make_plan
from geartrain.processor import Deal, Input, Output, Processor, broadcast, custom, dataflow, global_, hash_by
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.testing import TestingSink, TestingSource, run_flow
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.stage_run import StageRun
from tests.spark.stage_run import columns_table


class Word(Record):
    """A word and a number."""

    text: str
    n: int = 0


class Letters(Task[Word, Word]):
    """Without a key: each letter by itself; refuses what has none."""

    def on_next(self, value: Word, ctx: Context[Word, None]) -> None:
        if not value.text:
            raise ValueError("no letters")
        for letter in value.text:
            ctx.emit(Word(letter))


class Seen(State):
    """By one instance."""

    words: int = 0
    text: str = ""


class Count(Task[Word, Word]):
    """Counts, in the order of event time, and once more when a while has passed."""

    state: ClassVar[type[Seen]] = Seen

    def on_next(self, value: Word, ctx: Context[Word, Seen]) -> None:
        ctx.state.words += 1
        ctx.state.text = (ctx.state.text + value.text)[-9:]
        ctx.emit(Word(ctx.state.text, ctx.state.words))
        ctx.notify_at(ctx.event_time + 50)

    def on_notify(self, time: int, ctx: Context[Word, Seen]) -> None:
        ctx.emit(Word(f"at {time}", ctx.state.words))


TEXT = ["a", "rose", "", "is", "a", "rose", "is", "it", "not"]
WORDS = [(number * 3, Word(word)) for number, word in enumerate(TEXT * 6)]


def graph_of(deal: Deal, *, testing: bool) -> Graph:
    source: TestingSource[Word] = TestingSource(items=WORDS if testing else [])
    words = Input("words", source, out=Word)
    letters, count = Processor(Letters(), parallelism=2), Processor(Count(), parallelism=3)
    out = TestingSink("counts") if testing else Table("counts")
    return dataflow("words", words >> letters >> deal >> count >> Output("out", out))


@pytest.mark.parametrize(
    "deal",
    [hash_by("text"), global_(), custom(lambda word: ord(word.text)), broadcast()],
    ids=["hash", "global", "custom", "broadcast"],
)
@pytest.mark.parametrize("length", [1, 7, 100])
def test_groupings_through_the_stages_equal_one_process(deal: Deal, length: int) -> None:
    query = hosted_query(make_plan(graph_of(deal, testing=False), "cloud"))
    run, codec = StageRun(query, random.Random(length)), RowCodec(Word)
    found: list[tuple[int, Word]] = []
    letters = 0
    for position, first in enumerate(range(0, len(WORDS) + length, length), start=1):
        taken = WORDS[first : first + length]
        times = [time for time, _ in taken]
        numbers = list(range(first, first + len(taken)))
        columns = codec.to_columns([word for _, word in taken])
        rows = ColumnBatch(columns, times, ["split"] * len(taken), numbers)
        log = [("words", position, columns_table(rows, Word))] if taken else []
        for sink, batches in run.micro_batch(log, times[-1] if taken else END_OF_TIME).items():
            for batch in batches:
                if sink == "out":
                    found += zip(batch.times, codec.from_columns(batch.fields), strict=True)
                else:
                    letters += len(batch)
    want = run_flow(graph_of(deal, testing=True)).tables["out"]
    assert sorted(found, key=repr) == sorted(want, key=repr)
    assert letters == 6
