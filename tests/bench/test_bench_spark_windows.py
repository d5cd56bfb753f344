"""Windows of a flow in Spark against the same query by hand: of whole numbers, and of floats.

Both read the same columns of one log. Our sums of floats are exact; those of Spark differ in their last bits
with the order of the rows. By hand a query ends with a micro-batch without rows, which lets windows go, and
the very last ones never close, since nothing says that all has come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain.records.event_time import END_OF_TIME, SECOND_US
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from tests.bench.harness import Work, scaled
from tests.bench.on_spark import FlowRun, HandRun, as_spark_has_it, fresh, warmed
from tests.hosting.hosted_run import INSTANCE
from tests.spark.log_writer import LogWriter

ROWS = scaled(1_000_000, least=20_000)
MICRO_BATCH = max(5_000, ROWS // 4)
KEYS = 100
STEP_US = SECOND_US // KEYS
"""Each sensor tells once a second."""
SIZE_S = 10
START_US = 1_700_000_000 * SECOND_US


class Sample(Record):
    """One value of a sensor, whole and not."""

    sensor: str
    cycles: int
    value: float


class Whole(Record):
    """Of a window, whole numbers."""

    sensor: str
    window_start: int
    records: int
    cycles: int
    least: int
    most: int


class Exact(Record):
    """Of a window, floats."""

    sensor: str
    window_start: int
    records: int
    value: float


class Modern(TestingSource[Sample]):
    """Whose times are none before 1970."""

    since_1970 = True


def _whole() -> Flow:
    flow = Flow("windows")
    samples = flow.source("samples", Modern(), out=Sample)
    windows = samples.key_by("sensor", name="by_sensor").window(tumbling(timedelta(seconds=SIZE_S)))
    sums: dict[str, Any] = {"least": agg.min("cycles"), "most": agg.max("cycles")}
    sums |= {"records": agg.count(), "cycles": agg.sum("cycles")}
    windows.aggregate("sums", out=Whole, **sums).sink("out", Table("out"))
    return flow


def _exact() -> Flow:
    flow = Flow("windows")
    samples = flow.source("samples", TestingSource[Sample](), out=Sample)
    windows = samples.key_by("sensor", name="by_sensor").window(tumbling(timedelta(seconds=SIZE_S)))
    windows.aggregate("sums", out=Exact, records=agg.count(), value=agg.sum("value")).sink(
        "out", Table("out")
    )
    return flow


def _by_hand(source: DataFrame, *added: Any) -> DataFrame:
    timed = source.withColumn("time", F.timestamp_micros("_event_time")).withWatermark("time", "0 seconds")
    windows = timed.groupBy("sensor", F.window("time", f"{SIZE_S} seconds")).agg(F.count("*"), *added)
    return windows.withColumn("window", F.unix_micros("window.start"))


def _whole_by_hand(source: DataFrame) -> DataFrame:
    return _by_hand(source, F.sum("cycles"), F.min("cycles"), F.max("cycles"))


def _floats_by_hand(source: DataFrame) -> DataFrame:
    return _by_hand(source, F.sum("value"))


def _write(folder: Path) -> None:
    folder.mkdir()
    writer = LogWriter(folder, INSTANCE, {"samples": Sample}, sealed=True)
    for first in range(0, ROWS, MICRO_BATCH):
        numbers = list(range(first, min(first + MICRO_BATCH, ROWS)))
        columns: list[list[Any]] = [
            [f"s{n % KEYS}" for n in numbers],
            [n * 7 % 1_000 for n in numbers],
            [n % 97 / 10 for n in numbers],
        ]
        times = [START_US + n * STEP_US for n in numbers]
        rows = ColumnBatch(columns, times, ["d/samples"] * len(numbers), numbers)
        clock = END_OF_TIME if numbers[-1] == ROWS - 1 else times[-1]
        writer.append_rows("samples", rows, clock=clock)
    writer.close()


WORKS: dict[str, tuple[Callable[[], Flow], str, Callable[[DataFrame], DataFrame], float]] = {
    "whole number": (_whole, "cycles", _whole_by_hand, 0.9),
    "exact float": (_exact, "value", _floats_by_hand, 0.5),
}


@pytest.mark.parametrize("which", WORKS)
def test_windows(which: str, spark: SparkSession, tmp_path: Path) -> None:
    make, column, hand, goal = WORKS[which]
    log = tmp_path / "log"
    _write(log)
    found: dict[str, dict[Any, tuple[Any, ...]]] = {}

    def flow() -> float:
        run = FlowRun(spark, fresh(tmp_path), make(), log, MICRO_BATCH)
        took = run.run()
        found["flow"] = {row[:2]: row[2:] for row in run.rows("out")}
        return ROWS / took / 1_000

    def by_hand() -> float:
        columns = ("sensor", column, "_event_time")
        run = HandRun(spark, fresh(tmp_path), log, MICRO_BATCH, "samples", columns, hand)
        with as_spark_has_it(spark):
            took = run.run()
        found["by hand"] = {row[:2]: row[2:] for row in run.rows()}
        return ROWS / took / 1_000

    contenders = warmed({"by hand": by_hand, "flow": flow})
    Work(f"spark {which} windows", "krows/s", contenders, "by hand", {"by hand": goal}, ("pyspark",)).run()
    _check(found["flow"], found["by hand"])


def _check(ours: dict[Any, tuple[Any, ...]], theirs: dict[Any, tuple[Any, ...]]) -> None:
    windows = -(-ROWS * STEP_US // (SIZE_S * SECOND_US))
    assert len(ours) == windows * min(KEYS, ROWS)
    assert sum(values[0] for values in ours.values()) == ROWS
    assert len(theirs) >= len(ours) / 2
    for place, values in theirs.items():
        assert len(values) == len(ours[place])
        assert all(math.isclose(a, b) for a, b in zip(values, ours[place], strict=True)), place
