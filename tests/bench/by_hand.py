"""`python -m tests.bench.by_hand FLOW FOLDER RUNS`: a flow of the platform's as one would write it by hand.

A streaming query of PySpark with Spark's own settings, over Parquet files with the rows of all devices, into
a table of SQLite. FLOW is high or means. Prints the seconds of each run as JSON, and the processor seconds of
all that this process has started: it must lead a session of its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from geartrain_cloud.control.machine import processor_seconds
from geartrain_cloud.spark.java import ensure_java
from tests.bench.platform_flows import BEGIN, LIMIT, rows

FILE_ROWS, FILES = 20_000, 5
"""Rows of a file, and how many files a micro-batch reads."""
END_US = 4_000_000_000_000_000
"""Of the year 2096: the time of the row that closes all windows."""
COLUMNS = {"high": ("meter", "value"), "means": ("meter", "mean")}


def write_parquet(folder: Path, counts: Sequence[int]) -> None:
    """The rows of devices 1, 2, ..., so many of each, in the order of their times, and the one behind all."""
    folder.mkdir(parents=True)
    devices = [list(rows(count, device)) for device, count in enumerate(counts, 1)]
    placed = sorted((row for device in devices for row in device), key=lambda row: row[0])
    begin_us = int(BEGIN.timestamp()) * 1_000_000
    times = [begin_us + (at - BEGIN) // timedelta(microseconds=1) for at, _, _ in placed] + [END_US]
    meters, values = [row[1] for row in placed] + [""], [row[2] for row in placed] + [-1.0]
    table = pa.table(
        {"time": pa.array(times, pa.timestamp("us", "UTC")), "meter": meters, "value": values},
    )
    for first in range(0, len(table), FILE_ROWS):
        pq.write_table(table.slice(first, FILE_ROWS), folder / f"{first:010}.parquet")


def query(name: str, stream: DataFrame) -> DataFrame:
    """What the flow of that name does."""
    if name == "high":
        return stream.where(f.col("value") > LIMIT).select("meter", "value")
    timed = stream.withWatermark("time", "0 seconds")
    means = timed.groupBy("meter", f.window("time", "1 minute")).agg(f.avg("value").alias("mean"))
    return means.select("meter", "mean")


def run(session: SparkSession, name: str, folder: Path, number: int) -> tuple[float, float]:
    """Seconds, and processor seconds, of one run from the files' beginning to their end."""
    columns, schema = COLUMNS[name], session.read.parquet(str(folder / "rows")).schema
    database = sqlite3.connect(folder / f"{name}-{number}.sqlite", check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"CREATE TABLE out ({columns[0]} TEXT, {columns[1]} REAL)")

    def write(batch: DataFrame, _: int) -> None:
        table = batch.toArrow()
        values = (table.column(column).to_pylist() for column in columns)
        database.executemany("INSERT INTO out VALUES (?, ?)", zip(*values, strict=True))
        database.commit()

    with closing(database):
        began_s, began_cpu = time.monotonic(), processor_seconds([os.getpid()])[os.getpid()]
        files = session.readStream.schema(schema).option("maxFilesPerTrigger", FILES)
        stream = files.parquet(str(folder / "rows"))
        writer: Any = query(name, stream).writeStream.foreachBatch(write)
        running = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}-{number}")).start()
        running.processAllAvailable()
        running.stop()
        cpu = processor_seconds([os.getpid()])[os.getpid()] - began_cpu
        return time.monotonic() - began_s, cpu


def main() -> None:
    """Run it."""
    name, folder, runs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    took = [run(session, name, folder, number) for number in range(1, runs + 1)]
    session.stop()
    print(json.dumps([{"seconds": seconds, "cpu_s": cpu} for seconds, cpu in took]))


if __name__ == "__main__":
    main()
