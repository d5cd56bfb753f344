"""Keyed Python tasks against transformWithState by hand with one state value for each key: keys per second.

Every key is touched once by one large micro-batch, then a hundredth of them by each of some small ones, of
which the first, with which a query starts, is told apart. The hand-written processor gets pandas frames and
keeps a typed value in Spark's state for each key, as its documentation has it; it is given fewer keys, since
what it costs it costs for each. Both count and add up.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import KEYED
from geartrain_cloud.spark.streams import LogInput
from tests.bench.harness import SIZE, Work, scaled
from tests.bench.on_spark import FlowRun, HandRun, fresh, warmed
from tests.spark.log_writer import LogWriter

START_US = 1_700_000_000_000_000
TOUCHES = 6 if SIZE > 0.1 else 2
"""Small micro-batches."""

FEW, BY_HAND = "all of 30 k keys", "one state value a key, by hand"
MANY, TOUCHED, TOUCHED_FEW = "all of 300 k keys", "1 % of 300 k keys", "1 % of 30 k keys"


class Tick(Record):
    """One more of a key."""

    key: str
    value: int


class Seen(Record):
    """What was seen of a key so far."""

    key: str
    count: int
    total: int


class Running(State):
    """Of one key."""

    count: int = 0
    total: int = 0


class Counting(Task[Tick, Seen]):
    """Counts and adds up."""

    state = Running

    def on_next(self, tick: Tick, ctx: Context[Seen, Running]) -> None:
        ctx.state.count += 1
        ctx.state.total += tick.value
        ctx.emit(Seen(tick.key, ctx.state.count, ctx.state.total))


def _flow() -> Flow:
    flow = Flow("ticks")
    ticks = flow.source("ticks", TestingSource[Tick](), out=Tick, partitioned_by="key")
    ticks.key_by("key", name="by_key").process("counting", Counting()).sink("seen", Table("seen"))
    return flow


class ByHand(StatefulProcessor):
    """The same, one value of Spark's state for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take hold of the state."""
        self._state = handle.getValueState("running", "count long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """The rows of one key in this micro-batch."""
        # Here, because the process that Spark starts for each query with state reads this file too, and no
        # flow needs pandas.
        import pandas as pd

        count, total = self._state.get() or (0, 0)
        found: list[tuple[str, int, int]] = []
        for frame in rows:
            for value in frame["value"].tolist():
                count, total = count + 1, total + value
                found.append((key[0], count, total))
        self._state.update((count, total))
        yield pd.DataFrame(found, columns=["key", "count", "total"])

    def close(self) -> None:
        """Nothing is held."""


def _by_hand(source: DataFrame) -> DataFrame:
    layout = "key string, count long, total long"
    return source.groupBy("key").transformWithStateInPandas(ByHand(), layout, "Append", "None")


class Ticks:
    """The log of one run: all keys at once, then a hundredth of them in each small micro-batch."""

    def __init__(self, folder: Path, keys: int) -> None:
        folder.mkdir()
        self.folder, self.keys, self.touched = folder, keys, max(1, keys // 100)
        self._chance = random.Random(keys)
        self.seen: dict[str, list[int]] = {}
        self._number = 0
        self.expected: list[tuple[str, int, int]] = []

    def append(self, counts: list[int]) -> None:
        """Add entries: so many random keys at a time."""
        writer = LogWriter(self.folder, "ticks", {"ticks": Tick}, sealed=True)
        for count in counts:
            picked = self._chance.sample(range(self.keys), count)
            keys, values = [f"key-{n}" for n in picked], [n % 13 for n in picked]
            numbers = list(range(self._number, self._number + count))
            self._number += count
            rows = ColumnBatch([keys, values], [START_US + n for n in numbers], ["d/ticks"] * count, numbers)
            writer.append_rows("ticks", rows, clock=START_US + self._number)
            for key, value in zip(keys, values, strict=True):
                held = self.seen.setdefault(key, [0, 0])
                held[0], held[1] = held[0] + 1, held[1] + value
                self.expected.append((key, held[0], held[1]))
        writer.close()


def _logs(folder: Path, keys: int) -> tuple[Ticks, Ticks]:
    """A log with all keys, and a copy of it that goes on with small touches."""
    whole, more = Ticks(folder / f"whole-{keys}", keys), Ticks(folder / f"more-{keys}", keys)
    whole.append([keys])
    more.append([keys, *[more.touched] * TOUCHES])
    return whole, more


@pytest.fixture
def few(tmp_path: Path) -> tuple[Ticks, Ticks]:
    """Of 30,000 keys."""
    return _logs(tmp_path, scaled(30_000, least=200))


@pytest.fixture
def many(tmp_path: Path) -> tuple[Ticks, Ticks]:
    """Of 300,000 keys."""
    return _logs(tmp_path, scaled(300_000, least=400))


def test_keyed_tasks(
    spark: SparkSession, tmp_path: Path, few: tuple[Ticks, Ticks], many: tuple[Ticks, Ticks]
) -> None:
    small: dict[str, float] = {}
    started: dict[str, float] = {}

    def flow(logs: tuple[Ticks, Ticks], touched: str) -> float:
        whole, more = logs
        place = fresh(tmp_path)
        run = FlowRun(spark, place, _flow(), KEYED, LogInput(whole.folder, whole.keys))
        took = run.run()
        # The other log begins with the same entries, and its small ones are a micro-batch each.
        rest = FlowRun(spark, place, _flow(), KEYED, LogInput(more.folder, more.touched), run.sinks)
        rest.run()
        assert len(rest.micro_batches) == TOUCHES
        assert sorted(rest.rows("seen")) == sorted(more.expected)
        # The first one of a query waits for the process that tells Spark of its state.
        started[touched], each = rest.micro_batches[0], statistics.median(rest.micro_batches[1:])
        small[touched] = more.touched / each
        return whole.keys / took

    def by_hand() -> float:
        whole = few[0]
        run = HandRun(
            spark,
            fresh(tmp_path),
            LogInput(whole.folder, whole.keys),
            "ticks",
            "ticks",
            ("key", "value"),
            _by_hand,
        )
        took = run.run()
        assert sorted(run.rows()) == sorted(whole.expected)
        return whole.keys / took

    contenders = {
        BY_HAND: by_hand,
        FEW: lambda: flow(few, TOUCHED_FEW),
        MANY: lambda: flow(many, TOUCHED),
        TOUCHED_FEW: lambda: small[TOUCHED_FEW],
        TOUCHED: lambda: small[TOUCHED],
    }
    goals = {FEW: {BY_HAND: 10.0}, MANY: {BY_HAND: 10.0}}
    work = Work(
        "spark keyed tasks", "keys/s", warmed(contenders), BY_HAND, versions=("pyspark",), goals=goals
    )
    rows = {row["name"]: row for row in work.run()}
    for name, logs in ((TOUCHED_FEW, few), (TOUCHED, many)):
        touched = logs[1].touched
        took = touched / rows[name]["median"]
        print(f"  {name}: {took:.2f} s a micro-batch of {touched:,}, {started[name]:.2f} s the first one")
