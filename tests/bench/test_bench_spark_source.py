"""The log as a source of Spark against built-in parquet: rows per second into nothing, 3 and 10 columns.

Both are read by a streaming query to their end, in one session, in turns; the same rows in as many files.
What is read is counted and added up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from geartrain import Record
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch
from geartrain_cloud.spark.columns import COLUMNS_NAME
from tests.bench.harness import Work, scaled
from tests.bench.on_spark import fresh, run_to_end, warmed
from tests.spark.log_writer import LogWriter

ROWS = scaled(4_000_000, least=40_000)
FILE_ROWS = max(10_000, ROWS // 40)
START_US = 1_700_000_000_000_000


class Sample(Record):
    """One value of a sensor."""

    sensor: str
    value: float


class Telemetry(Record):
    """All that a machine tells at once."""

    sensor: str
    value: float
    site: str
    speed: float
    pressure: float
    cycles: int
    errors: int
    running: bool


def _sample(number: int) -> tuple[Any, ...]:
    return (f"s{number % 100}", number * 0.5)


def _telemetry(number: int) -> tuple[Any, ...]:
    more = (f"site-{number % 7}", number * 0.25, number % 97 / 8, number, number % 3, number % 5 > 0)
    return (*_sample(number), *more)


THREE = "sensor string, value double, _event_time long"
TEN = """
    sensor string, value double, site string, speed double, pressure double, cycles long, errors long,
    running boolean, _event_time long, _origin_number long
"""
WORKS: dict[int, tuple[type[Record], Callable[[int], tuple[Any, ...]], tuple[str, ...], str]] = {
    3: (Sample, _sample, ("_event_time",), THREE),
    10: (Telemetry, _telemetry, ("_event_time", "_origin_number"), TEN),
}


def _write(columns: int, log: Path, parquet: Path) -> None:
    kind, values, system, _ = WORKS[columns]
    writer = LogWriter(log, "bench", {"samples": kind}, sealed=True)
    parquet.mkdir()
    names = (*kind.__struct_fields__, *system)
    for first in range(0, ROWS, FILE_ROWS):
        numbers = list(range(first, min(first + FILE_ROWS, ROWS)))
        fields: list[list[Any]] = [list(column) for column in zip(*map(values, numbers), strict=True)]
        times = [START_US + number for number in numbers]
        rows = ColumnBatch(fields, times, ["d/samples"] * len(numbers), numbers)
        writer.append_rows("samples", rows, clock=END_OF_TIME if numbers[-1] == ROWS - 1 else None)
        given: Sequence[list[Any]] = [*fields, times, numbers][:columns]
        pq.write_table(pa.table(dict(zip(names, given, strict=True))), parquet / f"{first}.parquet")
    writer.close()


@pytest.mark.parametrize("columns", WORKS)
def test_spark_reads_the_log_and_parquet(columns: int, spark: SparkSession, tmp_path: Path) -> None:
    log, parquet = tmp_path / "log", tmp_path / "parquet"
    log.mkdir()
    _write(columns, log, parquet)
    kind, _, system, layout = WORKS[columns]
    names = [*kind.__struct_fields__, *system]
    found: list[tuple[int, float]] = []

    def sink(batch: DataFrame, _: int) -> None:
        ((count, total),) = batch.agg(F.count("sensor"), F.sum("value")).collect()
        found.append((count, total))

    def read(frame: DataFrame) -> float:
        found.clear()
        assert frame.columns == names
        began = time.perf_counter()
        run_to_end(frame, sink, fresh(tmp_path))
        took = time.perf_counter() - began
        assert sum(count for count, _ in found) == ROWS
        assert sum(total for _, total in found if total) == ROWS * (ROWS - 1) / 4
        return ROWS / took / 1_000

    def from_log() -> float:
        options = {"log": str(log), "flow": "bench", "channel": "samples", "columns": json.dumps(names)}
        return read(spark.readStream.format(COLUMNS_NAME).options(**options, rows_max=str(ROWS)).load())

    def from_parquet() -> float:
        return read(spark.readStream.schema(layout).parquet(str(parquet)))

    contenders = warmed({"parquet": from_parquet, "log": from_log})
    name = f"spark source, {columns} columns"
    Work(name, "krows/s", contenders, "parquet", {"parquet": 0.8}, ("pyspark", "pyarrow")).run()
