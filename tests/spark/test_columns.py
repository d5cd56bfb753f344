"""The log as a plain table for Spark code of one's own: which columns, which rows, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

from geartrain.errors import LedgerError
from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.log.part import SYSTEM_NAMES
from geartrain_cloud.spark.columns import COLUMNS_NAME, SPAN_ROWS, ColumnsReader, LogColumns
from tests.cloud.fleet import FLOW, TestDevice, running
from tests.cloud.test_partitions import config_of, named
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


def records(count: int, first: int = 0) -> list[tuple[Reading, int, str, int]]:
    return [(Reading("s", float(i)), i, "split", i) for i in range(first, first + count)]


def read_to_end(reader: ColumnsReader, rows_max: int) -> list[tuple[dict[str, int], list[dict[str, Any]]]]:
    """(end, rows) of each micro-batch."""
    found, start = [], reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(rows_max))) != start:
        spans = reader.partitions(start, end)
        found.append(
            (end, [row for span in spans for batch in reader.read(span) for row in batch.to_pylist()])
        )
        start = end
    return found


def test_micro_batches_are_bounded_and_cover_the_log(log: LogWriter) -> None:
    log.append("readings", records(1_000), rows_per_entry=30)
    reader = ColumnsReader(options(log, rows_max="100"))
    assert (reader.initialOffset(), reader.getDefaultReadLimit()) == ({"0": 0}, ReadMaxRows(100))
    found = read_to_end(reader, 100)
    assert [row["_origin_number"] for _, rows in found for row in rows] == list(range(1_000))
    assert [end["0"] for end, _ in found] == [*range(3, 31, 3), 34]
    assert reader.latestOffset({"0": 0}, ReadMaxRows(10)) == {"0": 1}  # an entry is never divided


def test_available_now_ends_where_the_log_ended(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=10)
    reader = ColumnsReader(options(log))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    log.append("readings", records(10, 500))
    assert reader.latestOffset(start, ReadAllAvailable()) == {"0": 50}
    with pytest.raises(LedgerError, match="use rows_max"):
        reader.latestOffset(start, ReadMaxFiles(3))
    with pytest.raises(LedgerError, match="stands at position 99, but the log ends at 50"):
        reader.latestOffset({"0": 99}, ReadMaxRows(100))


def test_large_micro_batches_are_divided(log: LogWriter) -> None:
    count = 3 * SPAN_ROWS
    log.append("readings", records(count), rows_per_entry=100)
    reader = ColumnsReader(options(log, columns='["_origin_number"]'))
    spans = reader.partitions({"0": 0}, {"0": -(-count // 100)})
    rows = [[row for batch in reader.read(span) for row in batch.to_pylist()] for span in spans]
    assert [abs(len(one) - count / 2) <= 100 for one in rows] == [True, True]
    assert [row["_origin_number"] for one in rows for row in one] == list(range(count))


def make_partitions(folder: Path, partitions: int) -> None:
    """A log that two devices have filled, of which the one in the middle has nothing."""
    devices = [TestDevice(named(0, partitions)), TestDevice(named(2, partitions))]

    async def run() -> None:
        names = (devices[0].name, devices[1].name)
        async with running(config_of(folder, partitions, names, group_commit_ms=1)) as world:
            for device in devices:
                world.net.deliver(device.topic, device.schemas())
            for turn in range(8):
                device = devices[turn % 2]
                world.net.deliver(device.topic, device.quotes(*(float(turn * 10 + i) for i in range(3))))
                await world.net.acked(device)

    asyncio.run(run())


def test_all_partitions_are_read_in_bounded_micro_batches(tmp_path: Path) -> None:
    make_partitions(tmp_path, 3)
    reader = ColumnsReader({"log": str(tmp_path), "flow": FLOW, "channel": "quotes"})
    assert reader.initialOffset() == {"0": 0, "1": 0, "2": 0}
    found = read_to_end(reader, 3)
    assert max(len(rows) for _, rows in found) <= 6  # three of each partition that has some
    prices = sorted(row["price"] for _, rows in found for row in rows)
    assert prices == sorted(float(turn * 10 + i) for turn in range(8) for i in range(3))


def test_spark_reads_a_channel_as_a_table(log: LogWriter, tmp_path: Path, spark: SparkSession) -> None:
    expected = fill(log)
    found: list[dict[str, Any]] = []
    frame = spark.readStream.format(COLUMNS_NAME).options(**options(log, rows_max="500")).load()
    query = frame.select("value", "_event_time").writeStream.trigger(availableNow=True)
    query = query.foreachBatch(lambda batch, _: found.extend(row.asDict() for row in batch.collect()))
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert found == expected
