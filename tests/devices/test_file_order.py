"""Files in order and out of order give the same replay, which a plain sort of their rows predicts."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import Record
from geartrain.errors import SourceError
from geartrain.source import Source
from geartrain_devices import file_order, text_files
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.external_sort import SortedRows
from geartrain_devices.history import History
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.simulated import SimulatedSensor
from tests.devices.prices import replay, write


class Count(Record):
    n: int


class Doubled(Record):
    """A constructor that changes what it is given."""

    n: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "n", self.n * 2)


class Row(NamedTuple):
    """A row of a file: its time in seconds, None where it is no record; blank rows are passed over."""

    time: int | None
    n: int
    is_blank: bool = False


rows_of_files = st.lists(
    st.one_of(
        st.builds(Row, st.integers(0, 5), st.integers(0, 99)),
        st.builds(Row, st.integers(0, 5) | st.none(), st.integers(0, 99), st.booleans()),
    ),
    max_size=30,
)
mostly_in_order = st.tuples(rows_of_files, st.booleans()).map(
    lambda drawn: sorted(drawn[0], key=lambda row: row.time or 0) if drawn[1] else drawn[0]
)


def as_json(row: Row) -> str:
    if row.is_blank:
        return " "
    return "{broken" if row.time is None else json.dumps({"time": row.time, "n": row.n})


def as_csv(row: Row) -> str:
    if row.is_blank:
        return ""
    text = "broken" if row.time is None else f"1970-01-01T00:00:{row.time:02d}Z"
    return f"{text},{row.n}"


def as_log(row: Row) -> str:
    if row.is_blank:
        return ""
    return "broken" if row.time is None else f"1970-01-01T00:00:{row.time:02d}Z n={row.n}"


FORMS: dict[str, tuple[Callable[[Row], str], str, dict[str, Any]]] = {
    "jsonl": (as_json, "", {}),
    "csv": (as_csv, "time,n\n", {}),
    "tsv": (lambda row: as_csv(row).replace(",", "\t"), "time\tn\n", {}),
    "log": (as_log, "", {"pattern": r"(?P<time>\S+) n=(?P<n>\d+)"}),
}


def expected(rows: list[Row]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """(n, time, number) of the records, and the numbers of the other rows."""
    filled = [row for row in rows if not row.is_blank]
    bad = sum(row.time is None for row in filled)
    good = sorted((row for row in filled if row.time is not None), key=lambda row: row.time or 0)
    return [(row.n, (row.time or 0) * 1_000_000, bad + i) for i, row in enumerate(good)], list(range(bad))


@contextmanager
def small_parts(chunk_bytes: int) -> Iterator[None]:
    """Have small files take the way of large ones."""
    with (
        patch.object(text_files, "_CHUNK_BYTES", chunk_bytes),
        patch.object(file_order, "CHUNK_ROWS_MAX", 3),
        patch.object(file_order, "SortedRows", lambda: SortedRows(rows_max=4)),
    ):
        yield


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(FORMS)), st.lists(mostly_in_order, min_size=1, max_size=3))
def test_files_are_replayed_by_time_and_then_by_line(
    data: st.DataObject, form: str, files: list[list[Row]]
) -> None:
    write_row, header, options = FORMS[form]
    is_packed, end = data.draw(st.booleans()), data.draw(st.sampled_from(["\n", "\r\n"]))
    with tempfile.TemporaryDirectory() as folder, small_parts(data.draw(st.integers(20, 200))):
        paths = []
        for number, rows in enumerate(files):
            raw = (header.strip() + end if header else "") + "".join(write_row(row) + end for row in rows)
            path = Path(folder) / f"{number}.{form}{'.gz' if is_packed else ''}"
            path.write_bytes(gzip.compress(raw.encode()) if is_packed else raw.encode())
            paths.append(str(path))
        source: Source[Any] = History(original=SimulatedSensor(), files=paths, alone=True, options=options)
        (split,) = source.open("d", "s", Count)
        whole = replay(split, limit=data.draw(st.integers(1, 40)))
        records, numbers = expected([row for rows in files for row in rows])
        assert [(value.n, time, number) for value, time, number in whole.rows] == records
        assert [reject.number for reject in whole.rejects] == numbers
        start = data.draw(st.integers(0, len(records) + len(numbers)))
        (again,) = source.open("d", "s", Count)
        rest = replay(again, start, limit=data.draw(st.integers(1, 40)))
        assert rest.rows == [row for row in whole.rows if row[2] >= start]
        assert rest.rejects == [reject for reject in whole.rejects if reject.number >= start]
        for opened in (split, again):
            asyncio.run(opened.close())


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["jsonl", "csv"]), rows_of_files)
def test_as_recorded_rows_come_as_they_stand(data: st.DataObject, form: str, rows: list[Row]) -> None:
    write_row, header, _ = FORMS[form]
    with tempfile.TemporaryDirectory() as folder, small_parts(data.draw(st.integers(20, 200))):
        path = write(Path(folder) / f"in.{form}", header + "".join(write_row(row) + "\n" for row in rows))
        source: Source[Any] = (
            JsonLines(path=path, as_recorded=True)
            if form == "jsonl"
            else CsvReplay(path=path, time_column="time", as_recorded=True)
        )
        (split,) = _opened(source)
        filled = [row for row in rows if not row.is_blank]
        start = data.draw(st.integers(0, len(filled)))
        found = replay(split, start, limit=data.draw(st.integers(1, 40)))
        assert [(value.n, number) for value, _, number in found.rows] == [
            (row.n, number) for number, row in enumerate(filled) if row.time is not None and number >= start
        ]
        assert [reject.number for reject in found.rejects] == [
            number for number, row in enumerate(filled) if row.time is None and number >= start
        ]
        asyncio.run(split.close())


def _opened(source: Source[Any], kind: type[Any] = Count) -> Any:
    return source.open("d", "s", kind)


def json_file(path: Path, times: list[int]) -> JsonLines[Any]:
    text = "".join(f'{{"time": {time}, "n": {n}}}\n' for n, time in enumerate(times))
    return JsonLines(path=write(path, text))


def test_a_file_in_order_needs_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    monkeypatch.setattr(file_order, "SortedRows", lambda: SortedRows(rows_max=1))
    (split,) = _opened(json_file(tmp_path / "in.jsonl", [1, 2, 2, 3] + [3] * 5_000))
    assert replay(split).numbers == list(range(5_004))
    (split,) = _opened(json_file(tmp_path / "in.jsonl", [1, 3, 2]))
    with pytest.raises(SourceError, match="sorting needs room"):
        replay(split)


@pytest.mark.parametrize("times", [[1, 2, 3], [3, 1, 2]])
def test_a_constructor_is_called_once_of_each_record(tmp_path: Path, times: list[int]) -> None:
    for source in (
        json_file(tmp_path / "in.jsonl", times),
        CsvReplay[Any](
            path=write(
                tmp_path / "in.csv",
                "time,n\n" + "".join(f"1970-01-01T00:00:0{time},{n}\n" for n, time in enumerate(times)),
            ),
            time_column="time",
        ),
    ):
        (split,) = _opened(source, Doubled)
        found = {time // 1_000_000: value.n for value, time, _ in replay(split).rows}
        assert found == {time: 2 * n for n, time in enumerate(times)}


async def _read_a_bit(split: Any) -> int:
    found = await split.read(0, 10)
    assert found.position == 10
    return int(found.position)


@pytest.mark.parametrize("times", [list(range(9_000)), [5, *range(9_000)]], ids=["in order", "a stray"])
def test_a_file_that_grows_is_read_as_it_was(tmp_path: Path, times: list[int]) -> None:
    source = json_file(tmp_path / "in.jsonl", times)
    (split,) = _opened(source)
    position = asyncio.run(_read_a_bit(split))
    with Path(source.path).open("a") as file:
        file.write('{"time": 1, "n": 1}\n' * 9_000)
    assert len(replay(split, position).rows) == len(times) - position


@pytest.mark.parametrize("times", [list(range(9_000)), [5, *range(9_000)]], ids=["in order", "a stray"])
@pytest.mark.parametrize("change", ["shorter", "other", "gone"])
def test_a_file_that_is_changed_meanwhile_is_refused(tmp_path: Path, times: list[int], change: str) -> None:
    source = json_file(tmp_path / "in.jsonl", times)
    (split,) = _opened(source)
    position, path = asyncio.run(_read_a_bit(split)), Path(source.path)
    match change:
        case "shorter":
            os.truncate(path, 100_000)
        case "other":
            path.with_suffix(".new").write_bytes(path.read_bytes())
            path.with_suffix(".new").rename(path)
        case "gone":
            path.unlink()
    with pytest.raises(SourceError, match=f"{re.escape(source.path)} was changed while it was read"):
        replay(split, position)
