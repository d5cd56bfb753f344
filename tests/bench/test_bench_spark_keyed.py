"""Keyed Python tasks against transformWithState by hand with one state value for each key: keys per second.

Every key is touched once by one large micro-batch, then a hundredth of them by each of some small ones. The
hand-written processor gets pandas frames and
keeps a typed value in Spark's state for each key, as its documentation has it; it is given fewer keys, since
what it costs it costs for each. Both count and add up.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from tests.bench.harness import SIZE, Work, scaled
from tests.bench.on_spark import FlowRun, HandRun, fresh, warmed
from tests.hosting.hosted_run import INSTANCE
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
    """A log: all keys in its first entry, then a hundredth of them in each of some more."""

    def __init__(self, folder: Path, keys: int, touches: int) -> None:
        folder.mkdir()
        self.folder, self.keys, self.touched = folder, keys, max(1, keys // 100)
        chance, seen, number = random.Random(keys), dict[str, list[int]](), 0
        self.expected: list[tuple[str, int, int]] = []
        writer = LogWriter(folder, INSTANCE, {"ticks": Tick}, sealed=True)
        for count in [keys, *[self.touched] * touches]:
            picked = chance.sample(range(keys), count)
            names, values = [f"key-{n}" for n in picked], [n % 13 for n in picked]
            numbers = list(range(number, number + count))
            number += count
            rows = ColumnBatch([names, values], [START_US + n for n in numbers], ["d/ticks"] * count, numbers)
            writer.append_rows("ticks", rows, rows_per_entry=count, clock=START_US + number)
            for name, value in zip(names, values, strict=True):
                held = seen.setdefault(name, [0, 0])
                held[0], held[1] = held[0] + 1, held[1] + value
                self.expected.append((name, held[0], held[1]))
        writer.close()


def test_keyed_tasks(spark: SparkSession, tmp_path: Path) -> None:
    few = Ticks(tmp_path / "few", scaled(30_000, least=200), TOUCHES)
    many = Ticks(tmp_path / "many", scaled(300_000, least=400), TOUCHES)
    whole = Ticks(tmp_path / "whole", few.keys, 0)
    small: dict[str, float] = {}

    def flow(log: Ticks, touched: str) -> float:
        run = FlowRun(spark, fresh(tmp_path), _flow(), log.folder, log.touched)
        run.run()
        assert sorted(run.rows("seen")) == sorted(log.expected)
        first, *rest = run.micro_batches[-1 - TOUCHES :]  # one for each entry; those before them had no rows
        small[touched] = log.touched / statistics.median(rest)
        return log.keys / first

    def by_hand() -> float:
        place, columns = fresh(tmp_path), ("key", "value")
        run = HandRun(spark, place, whole.folder, whole.keys, "ticks", columns, _by_hand)
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
    for name, log in ((TOUCHED_FEW, few), (TOUCHED, many)):
        print(f"  {name}: {log.touched / rows[name]['median']:.2f} s a micro-batch of {log.touched:,}")
