"""Rows of CSV that are read by the column give what each of them gives by itself."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from geartrain import Record
from geartrain_devices import csv_replay, text_files
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.csv_rows import CsvOptions
from geartrain_devices.written_times import NoTimeError, TimeOptions, Times


class Mode(Enum):
    ON = "on"


class Measured(Record):
    """All kinds of columns."""

    count: int
    ratio: float
    name: str
    good: bool
    seen: datetime
    mode: Mode
    maybe: float | None


plain = {
    "time": st.sampled_from(["2026-01-01T00:00:00.5Z", "2026-01-01T00:01:59.0Z", "2026-01-01T23:59:00.9Z"]),
    "count": st.integers(-(2**63), 2**63 - 1).map(str),
    "ratio": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "name": st.sampled_from(["a", "", "é"]),
    "good": st.sampled_from(["true", "0"]),
    "seen": st.sampled_from(["2026-01-01", "2026-01-01T00:00:00+02:00"]),
    "mode": st.just("ON"),
    "maybe": st.sampled_from(["", "1.5"]),
}
odd = st.sampled_from(
    [
        *("", " 1", "1_0", "+5", "--5", "1e999", "1e5", "inf", "nan", "0x1", "1.", ".", "-", "9" * 20),
        *("0" * 21 + "1", "9223372036854775808", "\u0661", "x\ry", "x,y", '"q"', "-0", "NA", "off", "1e-400"),
        *("2026-01-01T24:00:00.0Z", "2026-01-01T24:00:01.0Z", "2026-01-01T00:00:60.0Z"),
        *("0001-01-01T00:00:00.0Z", "2026-02-30T00:00:00.0Z", "2026-01-01T00:00:0x.0Z"),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """Rows of which some fields are odd."""
    rows = [[draw(column) for column in plain.values()] for _ in range(draw(st.integers(0, 8)))]
    for _ in range(draw(st.integers(0, 2)) if rows else 0):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, len(row) - 1))] = draw(odd)
    return rows


def rows_of(path: str, options: CsvOptions) -> list[Any]:
    """All that a file gives, row by row."""
    layout = csv_replay.csv_reader(path, "time", Measured, options)
    found: list[Any] = []
    for chunk in layout.chunks():
        records = zip(chunk.lines, chunk.times, chunk.records, chunk.contents, strict=True)
        of_chunk: list[Any] = [(line, time, repr(record), content) for line, time, record, content in records]
        of_chunk += [(row.line, row) for row in chunk.problems]
        found += sorted(of_chunk, key=lambda row: row[0])
        assert [layout.record(content) for content in chunk.contents] == chunk.records
    return found


@settings(deadline=None)
@given(tables(), st.sampled_from(["\n", "\r\n"]), st.integers(50, 1_000), st.sampled_from([(), ("NA",)]))
@example([], "\n", 50, ())
def test_columns_give_what_rows_give(
    rows: list[list[str]], end: str, chunk_bytes: int, marks: tuple[str, ...]
) -> None:
    with TemporaryDirectory() as folder, patch.object(text_files, "_CHUNK_BYTES", chunk_bytes):
        path = Path(folder) / "in.csv"
        path.write_bytes("".join(",".join(row) + end for row in [list(plain), *rows]).encode())
        options = CsvOptions(null_values=list(marks))
        by_columns = rows_of(str(path), options)
        with patch.object(csv_replay._Layout, "_columns_of", lambda *_: None):
            assert rows_of(str(path), options) == by_columns


def test_plain_rows_are_read_by_the_column(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    row = "2026-01-01T00:00:00Z,1,2.5,a,true,2026-01-01,ON,\n"
    path.write_text(",".join(plain) + "\n" + row * 10)
    with patch.object(csv_replay._Layout, "_read_into") as one_by_one:
        chunks = list(csv_replay.csv_reader(str(path), "time", Measured).chunks())
    assert sum(map(len, chunks)) == 10
    one_by_one.assert_not_called()


def test_only_the_rows_of_this_device_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("time,count\n" + "1970-01-01,1\n1970-01-01,2\n1970-01-01,x\n1970-01-01,1\n" * 100)

    class Counted(Record):
        count: int

    source: CsvReplay[Counted] = CsvReplay(
        path=str(path), time_column="time", partition_column="count", select=["1"]
    )
    (split,) = source.open("d", "s", Counted)
    (chunk, *_) = split._reader.chunks()  # type: ignore[attr-defined]
    assert [record.count for record in chunk.records] == [1] * 200
    assert chunk.lines[:4] == [2, 5, 6, 9]
    assert not chunk.problems


shapes = st.sampled_from(
    [
        "2026-03-29T02:{}:{}.{}Z",
        "2026-03-29T02:{}:{}.{}",
        "2026-10-25T02:{}:{}.{}+01:00",
        "1883-11-18 {}:{}.{}",
    ]
)


@settings(deadline=None)
@given(
    shapes,
    st.lists(st.tuples(*(st.integers(0, 61).map("{:02d}".format),) * 3), min_size=1, max_size=5),
    st.sampled_from(["", "Europe/Berlin"]),
    st.none() | st.tuples(st.integers(0, 28), st.characters()),
)
@example("2026-03-29T24:{}:{}.{}Z", [("00", "00", "00"), ("00", "01", "00")], "", None)
def test_times_that_are_written_alike_mean_what_each_means(
    shape: str, parts: list[tuple[str, str, str]], zone: str, spoiled: tuple[int, str] | None
) -> None:
    times = Times("source s", TimeOptions(time_zone=zone))
    texts = [shape.format(*part) for part in parts]
    if spoiled is not None:
        at, character = spoiled
        texts[-1] = texts[-1][:at] + character + texts[-1][at + 1 :]
    found = times.alike_times(texts)
    if found is not None:
        assert found == [times.event_time(text) for text in texts]
    elif spoiled is None and shape.endswith("Z") and "24:" not in shape:
        for text in texts:
            try:
                times.event_time(text)
            except NoTimeError:
                break
        else:
            assert any(second >= "60" for _, second, _ in parts), "plain times are read at once"
