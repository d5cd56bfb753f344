"""The log as a plain table for Spark code of one's own: which columns, which rows, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from geartrain.errors import LedgerError
from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.log.part import SYSTEM_NAMES
from geartrain_cloud.spark.columns import COLUMNS_NAME, ColumnsReader, LogColumns
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    writer = LogWriter(tmp_path / "log", "sums", {"readings": Reading}, sealed=True)
    yield writer
    writer.close()


def options(log: LogWriter, **more: Any) -> dict[str, str]:
    return {"log": str(log.folder), "flow": "sums", "channel": "readings"} | more


def fill(log: LogWriter) -> list[dict[str, Any]]:
    for first in (0, 700):
        rows = [(Reading("s", i / 2), 10 * i, "split", i) for i in range(first, first + 700)]
        log.append("readings", rows, rows_per_entry=30, clock=END_OF_TIME)
    return [{"value": i / 2, "_event_time": 10 * i} for i in range(1_400)]


def test_the_rows_are_handed_over_whole(log: LogWriter) -> None:
    expected = fill(log)
    reader = ColumnsReader(options(log, columns=json.dumps(["value", "_event_time"])))
    start = reader.initialOffset()
    spans = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = [batch for span in spans for batch in reader.read(span)]
    assert [row for batch in batches for row in batch.to_pylist()] == expected
    assert len(batches) == 2  # one a segment, of 24 entries each


def test_all_columns_are_those_of_the_record_and_of_the_log(log: LogWriter) -> None:
    layout = dict(column.replace("`", "").split() for column in LogColumns(options(log)).schema().split(", "))
    assert list(layout) == ["sensor", "value", *SYSTEM_NAMES]
    assert [layout[name] for name in ("sensor", "value", "_event_time", "_origin_path", "_late")] == [
        "string",
        "double",
        "bigint",
        "binary",
        "boolean",
    ]


def test_what_is_not_there_is_one_sentence(log: LogWriter, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has no column velocity: choose among sensor, value, _event_time"):
        LogColumns(options(log, columns='["velocity"]')).schema()
    with pytest.raises(LedgerError, match="sums/others has no schema yet"):
        LogColumns(options(log) | {"channel": "others"}).schema()


def test_spark_reads_a_channel_as_a_table(log: LogWriter, tmp_path: Path, spark: SparkSession) -> None:
    expected = fill(log)
    found: list[dict[str, Any]] = []
    frame = spark.readStream.format(COLUMNS_NAME).options(**options(log, rows_max="500")).load()
    query = frame.select("value", "_event_time").writeStream.trigger(availableNow=True)
    query = query.foreachBatch(lambda batch, _: found.extend(row.asDict() for row in batch.collect()))
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert found == expected
