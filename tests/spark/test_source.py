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
from geartrain_cloud.spark.clocks import decode_clocks
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
    assert start == {"0": 0}
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
    assert ends[-1] == {"0": 35}
    assert len(ends) == 11


def test_a_native_plan_has_one_more_micro_batch_where_the_clock_has_moved(log: LogWriter) -> None:
    log.append("readings", records(10), clock=7)
    log.end()
    source = reader(log, flush=json.dumps(["readings"]))
    offsets = [source.initialOffset()]
    heartbeats = []
    while (end := source.latestOffset(offsets[-1], ReadMaxRows(100))) != offsets[-1]:
        rows = read(source, list(source.partitions(offsets[-1], end)))
        heartbeats.append(sum(row["packed"] is None for row in rows))
        offsets.append(end)
    assert [end[FLUSHED] for end in offsets] == [START_OF_TIME, START_OF_TIME, END_OF_TIME]
    assert {key: at for key, at in offsets[-1].items() if key != FLUSHED} == {"0": 2}
    assert heartbeats == [1, 0]
    # Stopped between the two, it comes after the next start.
    assert (
        reader(log, flush=json.dumps(["readings"])).latestOffset(offsets[1], ReadMaxRows(100)) == offsets[2]
    )


def test_a_large_entry_is_not_divided(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=250)
    assert reader(log).latestOffset({"0": 0}, ReadMaxRows(100)) == {"0": 1}


def test_available_now_ends_where_the_log_ended(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=10)
    source = reader(log)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == {"0": 50}
    source.prepareForTriggerAvailableNow()
    log.append("readings", records(10, 500))
    assert source.latestOffset(start, ReadAllAvailable()) == {"0": 50}
    with pytest.raises(LedgerError, match="use rows_max"):
        source.latestOffset(start, ReadMaxFiles(3))


def test_small_entries_are_packed_together_and_large_micro_batches_divided(log: LogWriter) -> None:
    count = 3 * PACK_ROWS
    log.append("readings", records(count), rows_per_entry=100)
    source = reader(log)
    start, end = source.initialOffset(), {"0": -(-count // 100)}
    spans = list(source.partitions(start, end))
    assert len(spans) == 2
    rows = read(source, spans)
    packs = [(row["position"], ipc_to_table(row["packed"]).num_rows) for row in rows if row["channel"]]
    assert sum(n for _, n in packs) == count
    assert [p for p, _ in packs] == sorted({p for p, _ in packs})
    assert len(packs) <= 5
    assert sum(row["channel"] == "" for row in rows) == 1


def test_the_clocks_are_those_of_the_last_entry(log: LogWriter) -> None:
    log.append("readings", records(10), clock=5_000_000)
    log.advance(3_000_001, ["others"])
    source, clocks = reader(log), []
    for end in (1, 2):
        (span,) = source.partitions({"0": end - 1}, {"0": end})
        assert isinstance(span, Span)
        clocks.append(span.clocks)
        (row,) = [row for row in read(source, [span]) if not row["channel"]]
        assert decode_clocks(row["clocks"]) == span.clocks
    assert clocks == [{"readings": 5_000_000}, {"readings": 5_000_000, "others": 3_000_001}]


def test_channels_are_packed_apart_and_others_are_left_out(log: LogWriter) -> None:
    letter = Letter("readings", "not_a_record", "no number", b"x")
    for number in range(4):
        log.append("readings", records(30, number * 30), rows_per_entry=10)
        log.append("_late", [(letter, 5, "split", number)])
    entries = [(number, "_late" if number % 4 == 0 else "readings") for number in range(1, 17)]
    every, late = reader(log, rows_max="1000"), reader(log, rows_max="31", channels=json.dumps(["_late"]))
    for source, channels in ((every, {"readings", "_late"}), (late, {"_late"})):
        start = source.initialOffset()
        rows = read(source, list(source.partitions(start, {"0": 16})))[1:]
        packs = {row["channel"]: (row["position"], ipc_to_table(row["packed"])) for row in rows}
        assert len(packs) == len(rows) == len(channels)
        for channel in channels:
            position, table = packs[channel]
            assert position == max(n for n, of in entries if of == channel)
            assert table.column("_origin_number").to_pylist() == list(
                range(120 if channel == "readings" else 4)
            )
    # The rows of a channel that is not read count all the same, so one micro-batch is short of its own.
    assert late.latestOffset({"0": 0}, ReadMaxRows(31)) == {"0": 4}


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
    spans = list(source.partitions(source.initialOffset(), {"0": 4}))
    with pytest.raises(LedgerError) as raised:
        read(source, spans)
    assert "sums/0, channel readings, positions 1 to 4" in str(raised.value)
    assert name in str(raised.value)


def test_a_log_that_is_older_than_the_checkpoint_is_refused(log: LogWriter) -> None:
    log.append("readings", records(10))
    with pytest.raises(LedgerError, match="stands at position 9, but the log ends at 1"):
        reader(log).latestOffset({"0": 9}, ReadMaxRows(100))
