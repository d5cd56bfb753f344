"""The part of the log that a query reads: what is read together, and what is said of a damaged segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import LedgerError
from geartrain.records.letters import Letter
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.flow_log import FlowLog
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    writer = LogWriter(tmp_path / "log", "sums", {"readings": Reading, "_late": Letter})
    yield writer
    writer.close()


def reader(log: LogWriter, *channels: str) -> FlowLog:
    return FlowLog(LogReader(log.folder), "sums", channels or ("readings", "_late"))


def records(count: int, first: int = 0) -> list[tuple[Reading, int, str, int]]:
    return [(Reading("s", float(i)), i, "split", i) for i in range(first, first + count)]


def numbers(source: FlowLog, upto: int, rows_max: int) -> list[tuple[str, int, list[Any]]]:
    """(channel, position, numbers of its rows) of each run, whose rows are all of one type."""
    found = []
    for run in source.runs("0", 0, upto, rows_max):
        for position, table in source.rows(run):
            found.append((run[0].channel, position, table.column("_origin_number").to_pylist()))
    return found


def test_small_entries_are_read_together(log: LogWriter) -> None:
    log.append("readings", records(1_000), rows_per_entry=30)
    log.end()
    found = numbers(reader(log), 35, 100)
    assert [number for _, _, several in found for number in several] == list(range(1_000))
    assert [position for _, position, _ in found] == [*range(3, 31, 3), 34]
    assert max(len(several) for _, _, several in found) <= 100


def test_a_large_entry_is_not_divided(log: LogWriter) -> None:
    log.append("readings", records(500), rows_per_entry=250)
    assert [len(several) for _, _, several in numbers(reader(log), 2, 100)] == [250, 250]


def test_channels_are_read_apart_and_others_are_left_out(log: LogWriter) -> None:
    letter = Letter("readings", "not_a_record", "no number", b"x")
    for number in range(4):
        log.append("readings", records(30, number * 30), rows_per_entry=10)
        log.append("_late", [(letter, 5, "split", number)])
    wanted = {"readings": ("readings", 15, list(range(120))), "_late": ("_late", 16, list(range(4)))}
    assert {one[0]: one for one in numbers(reader(log), 16, 1_000)} == wanted
    assert numbers(reader(log, "_late"), 16, 1_000) == [wanted["_late"]]


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
    with pytest.raises(LedgerError) as raised:
        numbers(reader(log), 4, 100)
    assert "sums/0, channel readings, positions 1 to 4" in str(raised.value)
    assert name in str(raised.value)
