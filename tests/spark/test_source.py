"""The reader of the log without Spark: offsets, limits, spans, and loud refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

from geartrain.errors import LedgerError
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.letters import Letter
from geartrain_cloud.log.pack import ipc_to_table
from geartrain_cloud.spark.source import FLUSHED, PACK_ROWS, LogStreamReader, Span
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    writer = LogWriter(tmp_path / "log", "sums", {"readings": Reading, "_late": Letter})
    yield writer
    writer.close()


def reader(log: LogWriter, **options: Any) -> LogStreamReader:
    defaults = {"log": str(log.folder), "flow": "sums", "channels": json.dumps(["readings", "_late"])}
    return LogStreamReader(defaults | {"rows_max": "100", "readers": "2"} | options)


def records(count: int, first: int = 0) -> list[tuple[Reading, int, str, int]]:
    return [(Reading("s", float(i)), i, "split", i) for i in range(first, first + count)]


def read(source: LogStreamReader, spans: list[Any]) -> list[dict[str, Any]]:
    return [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]


def test_micro_batches_are_bounded_and_cover_the_log(log: LogWriter) -> None:
    log.append("readings", records(1_000), rows_per_entry=30)
    log.end()
    source = reader(log)
    start, numbers = source.initialOffset(), []
    assert start == {"readings": 0, "_late": 0}
    assert source.getDefaultReadLimit() == ReadMaxRows(100)
    ends = []
    while (end := source.latestOffset(start, ReadMaxRows(100))) != start:
        rows = read(source, list(source.partitions(start, end)))
        assert rows[0]["channel"] == ""
        tables = [ipc_to_table(row["packed"]) for row in rows[1:]]
        numbers += [n for table in tables for n in table.column("_origin_number").to_pylist()]
        assert sum(table.num_rows for table in tables) <= 100
        ends.append(end)
        start = end
    assert numbers == list(range(1_000))
    assert ends[-1] == {"readings": 35, "_late": 1}
    assert len(ends) == 11


def test_a_native_plan_has_one_more_micro_batch_where_the_clock_has_moved(log: LogWriter) -> None:
    log.append("readings", records(10), clock=7)
    log.end()
    source = reader(log, flush="true")
    offsets = [source.initialOffset()]
    heartbeats = []
    while (end := source.latestOffset(offsets[-1], ReadMaxRows(100))) != offsets[-1]:
        rows = read(source, list(source.partitions(offsets[-1], end)))
        heartbeats.append(sum(row["packed"] is None for row in rows))
        offsets.append(end)
    assert [end[FLUSHED] for end in offsets] == [START_OF_TIME, START_OF_TIME, END_OF_TIME]
    assert {key: at for key, at in offsets[-1].items() if key != FLUSHED} == {"readings": 2, "_late": 1}
    assert heartbeats == [1, 0]
    # Stopped between the two, it comes after the next start.
    assert reader(log, flush="true").latestOffset(offsets[1], ReadMaxRows(100)) == offsets[2]


def test_a_large_entry_is_not_divided(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=250)
    assert reader(log).latestOffset({"readings": 0, "_late": 0}, ReadMaxRows(100))["readings"] == 1


def test_available_now_ends_where_the_log_ended(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=10)
    source = reader(log)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == {"readings": 50, "_late": 0}
    source.prepareForTriggerAvailableNow()
    log.append("readings", records(10, 500))
    assert source.latestOffset(start, ReadAllAvailable()) == {"readings": 50, "_late": 0}
    with pytest.raises(LedgerError, match="use rows_max"):
        source.latestOffset(start, ReadMaxFiles(3))


def test_small_entries_are_packed_together_and_large_micro_batches_divided(log: LogWriter) -> None:
    count = 3 * PACK_ROWS
    log.append("readings", records(count), rows_per_entry=100)
    source = reader(log)
    start, end = source.initialOffset(), {"readings": -(-count // 100), "_late": 0}
    spans = list(source.partitions(start, end))
    assert len(spans) == 2
    rows = read(source, spans)
    packs = [(row["position"], ipc_to_table(row["packed"]).num_rows) for row in rows if row["channel"]]
    assert sum(n for _, n in packs) == count
    assert [p for p, _ in packs] == sorted({p for p, _ in packs})
    assert len(packs) <= 5
    assert sum(row["channel"] == "" for row in rows) == 1


def test_the_clock_is_that_of_the_slowest_channel(log: LogWriter) -> None:
    log.append("readings", records(10), clock=5_000_000)
    source = reader(log)
    start = source.initialOffset()
    (span,) = source.partitions(start, {"readings": 1, "_late": 0})
    assert isinstance(span, Span)
    assert span.clock == START_OF_TIME
    log.advance(3_000_001, ["_late"])
    (span,) = source.partitions(start, {"readings": 1, "_late": 1})
    assert isinstance(span, Span)
    assert span.clock == 3_000_001


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_segment_is_named(log: LogWriter, damage: str) -> None:
    log.append("readings", records(10), rows_per_entry=5)
    name = log.append("readings", records(10, 10), rows_per_entry=5)
    path = log.folder / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[content.index(b"split") + 1] ^= 0x80  # no longer UTF-8
        path.write_bytes(content)
    source = reader(log)
    spans = list(source.partitions(source.initialOffset(), {"readings": 4, "_late": 0}))
    with pytest.raises(LedgerError) as raised:
        read(source, spans)
    assert "sums/readings, positions 1 to 4" in str(raised.value)
    assert name in str(raised.value)


def test_a_log_that_is_older_than_the_checkpoint_is_refused(log: LogWriter) -> None:
    log.append("readings", records(10))
    with pytest.raises(LedgerError, match="stands at position 9, but the log ends at 1"):
        reader(log).latestOffset({"readings": 9, "_late": 0}, ReadMaxRows(100))
