"""Flows that write to PostgreSQL and to Parquet on the host: each record once, as plain Python gives them,
through a stop in mid-run, a commit that was lost, and a new start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from geartrain import Flow, Table
from geartrain.records.event_time import END_OF_TIME
from geartrain.sinks import ParquetTable, PostgresTable
from geartrain.testing import TestingSource
from tests.hosting.hosted_run import HostedRun
from tests.postgres_server import Postgres
from tests.spark.flows import Adding, Reading, Sum, expected_sums, positive, sensors


def stored_flow(dsn: str) -> Flow:
    """Readings above zero to Parquet; the running sums of each sensor to PostgreSQL, Parquet and SQLite."""
    flow = Flow("stored")
    source = TestingSource[Reading]()
    kept = flow.source("readings", source, out=Reading, partitioned_by="sensor").filter(positive)
    kept.sink("kept", ParquetTable("kept"))
    sums = kept.key_by("sensor", name="by_sensor").process("adding", Adding())
    sums.sink("each", PostgresTable("each_sum", dsn=dsn))
    sums.sink("last", PostgresTable("last_sum", key=("sensor",), dsn=dsn))
    sums.sink("parquet", ParquetTable("sums"))
    sums.sink("own", Table("own"))
    return flow


def parquet(folder: Path, fields: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """A dataset in canonical order."""
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    rows.sort(key=lambda row: (row["_event_time"], row["_origin_name"], row["_origin_number"]))
    return [tuple(row[name] for name in fields) for row in rows]


@pytest.mark.proof
def test_every_record_is_in_every_store_once(spark: SparkSession, tmp_path: Path, postgres: Postgres) -> None:
    dsn = postgres.database("stored")
    run = HostedRun(spark, tmp_path, stored_flow(dsn).graph(), rows_max=300)
    records = sensors(11, 1_200)
    run.log.append("readings", records[:700], rows_per_entry=50)
    run.run(batches=1)  # and stopped at once, whatever it was doing
    run.run()
    run.lose_the_last_commit()
    before = run.repeated
    run.log.append("readings", records[700:], rows_per_entry=50, clock=END_OF_TIME)
    run.run()
    run.log.close()
    assert run.repeated == before + 1

    readings = [record[0] for record in records]
    kept = [reading for reading in readings if reading.value > 0]
    sums = expected_sums(readings)
    last = {each.sensor: each for each in sums}
    folder = run.tables.parent
    assert parquet(folder / "kept.parquet", ("sensor", "value")) == [(r.sensor, r.value) for r in kept]
    assert parquet(folder / "sums.parquet", ("sensor", "count", "total")) == list(map(columns, sums))
    with psycopg.connect(dsn) as db:
        order = b"_event_time, _origin_name, _origin_number, _origin_path"
        each = db.execute(b"SELECT sensor, count, total FROM each_sum ORDER BY " + order).fetchall()
        held = db.execute("SELECT sensor, count, total FROM last_sum ORDER BY sensor").fetchall()
    assert each == list(map(columns, sums))
    assert held == [columns(last[sensor]) for sensor in sorted(last)]
    assert [each for _, _, each in run.records("own")] == sums


def columns(each: Sum) -> tuple[str, int, float]:
    return each.sensor, each.count, each.total
