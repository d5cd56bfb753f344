"""From a sensor to a table through everything, at 1,000 and 10,000 records a second, by hop; and how long a
micro-batch takes beside a query of the same shape by hand.

Each record is timed from the moment it is born: until its batch is durable in the spool, until the ack of it
is heard, which comes after it is durable in the log, until the micro-batch starts that takes it, and until
that is in the table. Live, one agent, a real broker, ingest and Spark share this machine. The query by hand
reads the same log, calls the same function in the same micro-batches, and inserts into SQLite with the same
durability.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from geartrain import Flow, Source, Table
from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.compile import STATELESS, compile_queries
from geartrain_cloud.spark.micro_batch import MicroBatchWriter
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.streams import LogInput, RunningQuery, query_frame
from tests.bench.harness import SIZE, Work
from tests.bench.live_sensor import Hops, Reading, Ticking, Ticks, sending
from tests.bench.on_spark import fresh, run_to_end, warmed
from tests.spark.log_writer import LogWriter

LIVE_S = max(1.0, 15.0 * min(1.0, SIZE))
MICRO_BATCHES = 20 if SIZE > 0.1 else 3
PATIENCE_S = 300.0
COLUMNS = '["sensor", "value"]'


def corrected(reading: Reading) -> Reading:
    """By what the sensors are known to be off."""
    return Reading(reading.sensor, reading.value + 0.25)


def _flow(source: Source[Reading]) -> Flow:
    flow = Flow("readings")
    flow.source("readings", source, out=Reading).map(corrected).sink("out", Table("corrected"))
    return flow


class _Stamped:
    """Tables that note when each micro-batch was written, and which records it had."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables
        self.written: list[tuple[int, float, list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def write(
        self, query: str, batch_id: int, positions: Any, rows: Mapping[str, Sequence[ColumnBatch]], count: int
    ) -> bool:
        """Write, and note."""
        done: bool = self._tables.write(query, batch_id, positions, rows, count)
        self.written.append((batch_id, time.time(), [n for b in rows.get("out", ()) for n in b.numbers]))
        return done


@pytest.mark.parametrize("rate", [1_000, 10_000])
def test_latency_from_sensor_to_sink(rate: int, spark: SparkSession, tmp_path: Path) -> None:
    ticks = Ticks(rate, int(rate * LIVE_S))
    sending_plan = make_plan(_flow(Ticking(ticks=ticks)).graph(), "cloud")
    plan = make_plan(
        _flow(TestingSource[Reading]()).graph(), "cloud"
    )  # goes to Spark, which the clock cannot
    (query,) = compile_queries(plan)
    tables = _Stamped(open_tables(plan.graph, tmp_path / "tables.sqlite"))
    log = LogInput(tmp_path / "log")
    deadline = time.monotonic() + PATIENCE_S
    with sending(sending_plan, tmp_path, "readings") as hops:
        while not LogReader(log.folder).ready():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        checkpoint = open_checkpoint(tmp_path / "checkpoint", query, SHARDS)
        running = RunningQuery(spark, query, checkpoint, log, tables)  # type: ignore[arg-type]
        try:
            while sum(len(numbers) for _, _, numbers in tables.written) < ticks.total:
                running.check()
                if tables.written:
                    ticks.go.set()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            running.settle()
            reports = {r["batchId"]: r["timestamp"] for r in running._handle.recentProgress}
        finally:
            running.stop()
    started = {n: datetime.fromisoformat(at).timestamp() for n, at in reports.items()}
    took = _by_hop(ticks, hops, tables.written, started)
    assert len(took["sensor to sink"]) == ticks.total - 1
    for at, name in ((49, "p50"), (94, "p95"), (98, "p99")):
        found = {hop: statistics.quantiles(several, n=100)[at] * 1_000 for hop, several in took.items()}
        contenders = {hop: lambda ms=ms: ms for hop, ms in found.items()}
        Work(f"sensor to sink, {rate:,}/s, {name}", "ms", contenders, "sensor to sink").run(1)


def _by_hop(
    ticks: Ticks, hops: Hops, written: Sequence[tuple[int, float, list[int]]], started: Mapping[int, float]
) -> dict[str, list[float]]:
    """Seconds of each record but the first, for which programs were waited for."""
    took: dict[str, list[float]] = {
        "to the spool": [],
        "to the log, acked": [],
        "to the micro-batch's start": [],
        "to the table": [],
        "sensor to sink": [],
    }
    for batch_id, at, numbers in written:
        for number in numbers:
            if number:
                born = ticks.began + number / ticks.rate
                times = (born, _when(hops.spooled, number), _when(hops.acked, number), started[batch_id], at)
                for hop, (a, b) in zip(took, pairwise(times), strict=False):
                    took[hop].append(b - a)
                took["sensor to sink"].append(at - born)
    return took


def _when(counts: Sequence[tuple[float, int]], number: int) -> float:
    """When record `number`, counted from 0, was among those that were there."""
    return counts[bisect_left(counts, number + 1, key=lambda one: one[1])][0]


def _write(folder: Path, rows_each: int) -> None:
    folder.mkdir()
    writer = LogWriter(folder, "readings", {"readings": Reading}, sealed=True)
    for first in range(0, rows_each * MICRO_BATCHES, rows_each):
        numbers = list(range(first, first + rows_each))
        columns: list[list[Any]] = [
            [f"sensor-{n % 1_000:03d}" for n in numbers],
            [n % 80 / 4 for n in numbers],
        ]
        rows = ColumnBatch(columns, numbers, ["d/readings"] * rows_each, numbers)
        writer.append_rows("readings", rows, rows_per_entry=rows_each, clock=numbers[-1])
    writer.advance(END_OF_TIME)
    writer.close()


def _mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("sensor", "value"))
        made = [corrected(Reading(sensor, value)) for sensor, value in zip(*columns, strict=True)]
        sensors = pa.array([reading.sensor for reading in made], pa.string())
        yield pa.record_batch({"sensor": sensors, "value": pa.array([reading.value for reading in made])})


@pytest.mark.parametrize("rows_each", [1_000, 10_000])
def test_a_micro_batch(rows_each: int, spark: SparkSession, tmp_path: Path) -> None:
    log = LogInput(tmp_path / "log", rows_each)
    _write(log.folder, rows_each)
    total = rows_each * MICRO_BATCHES

    def flow() -> float:
        place = fresh(tmp_path)
        plan = make_plan(_flow(TestingSource[Reading]()).graph(), "cloud")
        query = next(one for one in compile_queries(plan) if one.name == STATELESS)
        checkpoint = open_checkpoint(place, query, SHARDS)
        with closing(open_tables(plan.graph, place / "tables.sqlite")) as tables:
            tables.attach(query.name, checkpoint.identity, has_run=False)
            breaker = Breaker(query.name, place, 100)
            writer = MicroBatchWriter(checkpoint, tables, LogReader(log.folder), query, breaker)
            took = run_to_end(query_frame(spark, query, log, checkpoint), writer, checkpoint.location)
        _check(place / "tables.sqlite", "corrected", total)
        return statistics.median(took) * 1_000

    def by_hand() -> float:
        place = fresh(tmp_path)
        place.mkdir()
        database = sqlite3.connect(place / "tables.sqlite", check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE corrected (sensor TEXT, value REAL)")

        def sink(frame: DataFrame, _: int) -> None:
            table = frame.toArrow()
            columns = (table.column(name).to_pylist() for name in ("sensor", "value"))
            database.executemany("INSERT INTO corrected VALUES (?, ?)", zip(*columns, strict=True))
            database.commit()

        options = {"log": str(log.folder), "flow": "readings", "channel": "readings", "columns": COLUMNS}
        source = spark.readStream.format("geartrain_log_columns").options(**options, rows_max=str(rows_each))
        mapped = source.load().mapInArrow(_mapped, "sensor string, value double")
        with closing(database):
            took = run_to_end(mapped, sink, place / "spark")
        _check(place / "tables.sqlite", "corrected", total)
        return statistics.median(took) * 1_000

    contenders = warmed({"by hand": by_hand, "flow": flow})
    name = f"spark micro-batch of {rows_each:,} (less is better)"
    Work(name, "ms", contenders, "by hand", {"by hand": 1.2}, ("pyspark",)).run()


def _check(file: Path, table: str, rows: int) -> None:
    with closing(sqlite3.connect(file)) as database:
        ((count, value),) = database.execute(f"SELECT count(*), sum(value) FROM {table}")
    assert count == rows
    assert value == sum(n % 80 / 4 + 0.25 for n in range(rows))
