"""The log as a source of Spark against built-in parquet: rows per second into nothing, three columns.

Both are read by a streaming query to their end (availableNow) in one session, in turns. The log's packed
rows are unpacked to the same columns before they are counted as read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from geartrain import Record
from geartrain.event_time import END_OF_TIME
from geartrain_cloud.spark.pack import ipc_to_table
from geartrain_cloud.spark.session import open_session
from geartrain_cloud.spark.source import SOURCE_NAME
from tests.bench.harness import Work, scaled
from tests.spark.log_writer import LogWriter

ROWS = scaled(2_000_000, least=20_000)
SEGMENT = 20_000
COLUMNS = "sensor string, value double, _event_time long"


class Sample(Record):
    sensor: str
    value: float


def _write(log: Path, parquet: Path) -> None:
    writer = LogWriter(log, "bench", {"samples": Sample})
    parquet.mkdir()
    for first in range(0, ROWS, SEGMENT):
        numbers = range(first, min(first + SEGMENT, ROWS))
        rows = [(Sample(f"s{i % 100}", i * 0.5), i, "d/samples", i) for i in numbers]
        writer.append("samples", rows, clock=END_OF_TIME if numbers[-1] == ROWS - 1 else None)
        table = pa.table(
            {
                "sensor": [r[0].sensor for r in rows],
                "value": [r[0].value for r in rows],
                "_event_time": [r[1] for r in rows],
            }
        )
        pq.write_table(table, parquet / f"{first}.parquet")
    writer.close()


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for packed in batch.column("packed").to_pylist():
            if packed is not None:
                yield from ipc_to_table(packed).select(["sensor", "value", "_event_time"]).to_batches()


def test_spark_reads_the_log_and_parquet(tmp_path: Path) -> None:
    log, parquet = tmp_path / "log", tmp_path / "parquet"
    log.mkdir()
    _write(log, parquet)
    spark = open_session("local[2]", tmp_path)
    counted: list[int] = []

    def read(frame: DataFrame) -> float:
        counted.clear()

        def sink(batch: DataFrame, _: int) -> None:
            counted.append(int(batch.agg({"value": "count"}).collect()[0][0]))

        began = time.perf_counter()
        query: Any = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / f"checkpoint-{began}")).start().awaitTermination()
        took = time.perf_counter() - began
        assert sum(counted) == ROWS
        return ROWS / took / 1_000

    def from_log() -> float:
        options = {"log": str(log), "flow": "bench", "channels": json.dumps(["samples"])}
        options |= {"rows_max": str(ROWS), "readers": "2"}
        return read(
            spark.readStream.format(SOURCE_NAME).options(**options).load().mapInArrow(_unpack, COLUMNS)
        )

    def from_parquet() -> float:
        return read(spark.readStream.schema(COLUMNS).parquet(str(parquet)))

    try:
        contenders = {"parquet": from_parquet, "log": from_log}
        Work("spark source", "krows/s", contenders, "parquet", {"parquet": 0.8}, ("pyspark", "pyarrow")).run(
            3
        )
    finally:
        spark.stop()
