"""From a sensor to a table on a platform with its defaults, at 1,000 and 10,000 records a second.

And how long a micro-batch takes beside a query of the same shape by hand.

Each record says when it was born. When a micro-batch is in the table is seen by asking the file every few
milliseconds up to which row it holds the log. The query by hand reads the same log, calls the same function
in the same micro-batches, and inserts into SQLite with the same durability.
"""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from geartrain import Flow, Record, Table
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from geartrain_cloud.cli.hops import served_tables
from geartrain_cloud.platform.places import PlatformPlaces
from tests.bench.harness import ROOT, SIZE, Absent, Work
from tests.bench.on_spark import FlowRun, HandRun, fresh, warmed
from tests.control.platform_client import client_of
from tests.hosting.hosted_run import INSTANCE
from tests.spark.log_writer import LogWriter
from tests.supervisor.test_up import platform

LIVE_S = max(2.0, 20.0 * min(1.0, SIZE))
WARM_S = 15.0 if SIZE > 0.01 else 1.0
"""From the first row in the table until what is measured: Spark's start leaves a backlog, and Spark cold."""
RATES = (1_000, 10_000) if SIZE > 0.01 else (200,)
MICRO_BATCHES = 20 if SIZE > 0.1 else 3
PATIENCE_S = 150.0
CAUGHT_UP_S = 2.0
"""Who lags behind by no more has caught up."""
BEHIND_S = 5.0
"""How long the last records may take."""
ASK_S = 0.004
COLUMNS = ("sensor", "value")


class Reading(Record):
    """One value of a sensor."""

    sensor: str
    value: float


def corrected(reading: Reading) -> Reading:
    """By what the sensors are known to be off."""
    return Reading(reading.sensor, reading.value + 0.25)


def _flow() -> Flow:
    flow = Flow("readings")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    readings.map(corrected).sink("out", Table("corrected"))
    return flow


@pytest.mark.parametrize("rate", RATES)
def test_latency_from_sensor_to_table(rate: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with platform(state):
        client_of(state)
        gear(state, "device", "add", "d1", "--local")
        flow = "tests.bench.live_flow:flow"
        gear(state, "submit", flow, "--set", f"readings.rate={rate}", "--cut", "cloud", "--no-wait")
        commits, first = _commits(served_tables(PlatformPlaces(state), "live.1"), rate)
        with closing(sqlite3.connect(served_tables(PlatformPlaces(state), "live.1"))) as database:
            select = "SELECT _origin_number, born_s FROM corrected ORDER BY _origin_number"
            rows = database.execute(select).fetchall()
    assert [number for number, _ in rows] == list(range(len(rows)))  # each once, none missing
    work, ends = f"sensor to table on a platform, {rate:,}/s", [count for _, count in commits]
    if not first:
        behind = Absent(f"the tables fell behind, and had not caught up after {PATIENCE_S:g} s")
        Work(work, "ms", {"p50": behind}, "p50").run(1)
        return
    took = [
        commits[bisect_left(ends, number + 1)][0] - born_s
        for number, born_s in rows
        if number < ends[-1] and born_s >= first
    ]
    took = took[: int(rate * LIVE_S)]
    assert len(took) > rate
    found = {f"p{at}": statistics.quantiles(took, n=100)[at - 1] * 1_000 for at in (50, 95, 99)}
    contenders = {name: lambda ms=ms: ms for name, ms in found.items()}
    Work(work, "ms", contenders, "p50").run(1)


def gear(state: Path, *arguments: str) -> None:
    """Run `gear` on a platform, where the flows of benchmarks are found."""
    command = [sys.executable, "-m", "geartrain_client.cli", *arguments, "--state", str(state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _commits(tables: Path, rate: int) -> tuple[list[tuple[float, int]], float]:
    """When each micro-batch was in the tables, and the rows of the log up to its end; and from when on the
    backlog of Spark's start was gone, 0 where it never was.
    """
    found: list[tuple[float, int]] = []
    began_s = caught_up_s = 0.0
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and (not caught_up_s or time.time() < caught_up_s + LIVE_S + BEHIND_S):
        time.sleep(ASK_S if tables.exists() else 0.1)
        if tables.exists():
            with closing(sqlite3.connect(tables, timeout=PATIENCE_S)) as database:
                is_there = "SELECT 1 FROM sqlite_master WHERE name = '_queries'"
                if not database.execute(is_there).fetchone():
                    continue
                (count,) = database.execute("SELECT coalesce(sum(log_rows), 0) FROM _queries").fetchone()
                if count and not began_s:
                    (began_s,) = database.execute("SELECT min(born_s) FROM corrected").fetchone()
            if count > (found[-1][1] if found else 0):
                found.append((time.time(), count))
                is_warm = time.time() >= found[0][0] + WARM_S
                if is_warm and not caught_up_s and count >= (time.time() - began_s - CAUGHT_UP_S) * rate:
                    caught_up_s = time.time()
    return found, caught_up_s


def _write(folder: Path, rows_each: int) -> None:
    folder.mkdir()
    writer = LogWriter(folder, INSTANCE, {"readings": Reading}, sealed=True)
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
        columns = (batch.column(name).to_pylist() for name in COLUMNS)
        made = [corrected(Reading(sensor, value)) for sensor, value in zip(*columns, strict=True)]
        sensors = pa.array([reading.sensor for reading in made], pa.string())
        yield pa.record_batch({"sensor": sensors, "value": pa.array([reading.value for reading in made])})


@pytest.mark.parametrize("rows_each", [1_000, 10_000])
def test_a_micro_batch(rows_each: int, spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log, rows_each)
    wanted = [(f"sensor-{n % 1_000:03d}", n % 80 / 4 + 0.25) for n in range(rows_each * MICRO_BATCHES)]

    def flow() -> float:
        run = FlowRun(spark, fresh(tmp_path), _flow(), log, rows_each)
        run.run()
        assert run.rows("out") == wanted
        return statistics.median(run.micro_batches[-MICRO_BATCHES:]) * 1_000

    def by_hand() -> float:
        run = HandRun(
            spark,
            fresh(tmp_path),
            log,
            rows_each,
            "readings",
            COLUMNS,
            lambda source: source.mapInArrow(_mapped, "sensor string, value double"),
        )
        run.run()
        assert run.rows() == wanted
        return statistics.median(run.micro_batches) * 1_000

    contenders = warmed({"by hand": by_hand, "flow": flow})
    name = f"spark micro-batch of {rows_each:,} (less is better)"
    Work(name, "ms", contenders, "by hand", {"by hand": 1.2}, ("pyspark",)).run()
