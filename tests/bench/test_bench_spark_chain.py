"""A chain of Python steps without state in a flow, against `mapInArrow` by hand that does the same.

Four functions of the user on each record: a map, a filter, and two more maps. Both read the same log in the
same micro-batches, call the same functions on the same records, and write what is left into SQLite. The flow
also checks each output, and carries origins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geartrain import Flow, Record, Table
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from tests.bench.harness import Work, scaled
from tests.bench.on_spark import FlowRun, HandRun, fresh, warmed
from tests.hosting.hosted_run import INSTANCE
from tests.spark.log_writer import LogWriter

ROWS = scaled(1_000_000, least=10_000)
MICRO_BATCH = max(5_000, ROWS // 4)
ENTRY = 1_000
START_US = 1_700_000_000_000_000
COLUMNS = ("sensor", "value", "_event_time")
LAYOUT = "sensor string, value double, _event_time long"


class Sample(Record):
    """One value of a sensor."""

    sensor: str
    value: float


def celsius(sample: Sample) -> Sample:
    """From Fahrenheit."""
    return Sample(sample.sensor, (sample.value - 32.0) / 1.8)


def plausible(sample: Sample) -> bool:
    """Whether it can be."""
    return -40.0 < sample.value < 60.0


def corrected(sample: Sample) -> Sample:
    """By what the sensors are known to be off."""
    return Sample(sample.sensor, sample.value + 0.25)


def named(sample: Sample) -> Sample:
    """By its place."""
    return Sample("hall/" + sample.sensor, sample.value)


def _flow() -> Flow:
    flow = Flow("chain")
    samples = flow.source("samples", TestingSource[Sample](), out=Sample)
    samples.map(celsius).filter(plausible).map(corrected).map(named).sink("out", Table("out"))
    return flow


def _mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sensors: list[str] = []
        values: list[float] = []
        times: list[int] = []
        for sensor, value, time in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            sample = celsius(Sample(sensor, value))
            if plausible(sample):
                sample = named(corrected(sample))
                sensors.append(sample.sensor)
                values.append(sample.value)
                times.append(time)
        columns = {"sensor": pa.array(sensors, pa.string()), "value": pa.array(values, pa.float64())}
        yield pa.record_batch(columns | {"_event_time": pa.array(times, pa.int64())})


def _by_hand(source: DataFrame) -> DataFrame:
    return source.mapInArrow(_mapped, LAYOUT)


def _write(folder: Path) -> None:
    folder.mkdir()
    writer = LogWriter(folder, INSTANCE, {"samples": Sample}, sealed=True)
    for first in range(0, ROWS, MICRO_BATCH):
        numbers = list(range(first, min(first + MICRO_BATCH, ROWS)))
        columns: list[list[Any]] = [
            [f"s{n % 100}" for n in numbers],
            [n % 200 - 20 + n % 8 / 8 for n in numbers],
        ]
        rows = ColumnBatch(columns, [START_US + n for n in numbers], ["d/samples"] * len(numbers), numbers)
        clock = END_OF_TIME if numbers[-1] == ROWS - 1 else None
        writer.append_rows("samples", rows, rows_per_entry=ENTRY, clock=clock)
    writer.close()


def test_a_chain_of_python_steps(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log)
    # Rows of ours hold thousands of records; for others, Spark's own number of rows between Java and Python.
    ours = str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
    found: dict[str, list[tuple[str, float]]] = {}

    def flow() -> float:
        run = FlowRun(spark, fresh(tmp_path), _flow(), log, MICRO_BATCH)
        took = run.run()
        found["flow"] = [(row[0], row[1]) for row in run.rows("out")]
        return ROWS / took / 1_000

    def by_hand() -> float:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        run = HandRun(spark, fresh(tmp_path), log, MICRO_BATCH, "samples", COLUMNS, _by_hand)
        took = run.run()
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ours)
        found["by hand"] = [(row[0], row[1]) for row in run.rows()]
        return ROWS / took / 1_000

    contenders = warmed({"by hand": by_hand, "flow": flow})
    Work("spark chain", "krows/s", contenders, "by hand", {"by hand": 0.7}, ("pyspark", "pyarrow")).run()
    assert len(found["flow"]) > ROWS / 4
    assert sorted(found["flow"]) == sorted(found["by hand"])
