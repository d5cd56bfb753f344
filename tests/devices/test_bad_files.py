"""Files that are no text, no UTF-8, or hold no record: what each source says of them, and when."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from geartrain import Flow, Record, Source, Table
from geartrain.errors import SourceError
from geartrain.testing import run_flow
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory, JsonLinesDirectory
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.text_bytes import not_utf8
from geartrain_devices.text_files import open_text

HEADER = "at,city,n\n"


class Row(Record):
    city: str
    n: int


def csv_file(path: Path) -> Source[Row]:
    return CsvReplay(path=str(path), time_column="at", partition_column="city")


def csv_folder(path: Path) -> Source[Row]:
    return CsvDirectory(path=str(path.parent), time_column="at", last="end")


def json_file(path: Path) -> Source[Row]:
    return JsonLines(path=str(path), time="at")


def json_folder(path: Path) -> Source[Row]:
    return JsonLinesDirectory(path=str(path.parent), time="at", last="end")


CSV, JSON = (csv_file, csv_folder), (json_file, json_folder)
KINDS = [(make, ".csv") for make in CSV] + [(make, ".jsonl") for make in JSON]


def written(tmp_path: Path, suffix: str, rows: list[tuple[str, str, str]], encoding: str) -> Path:
    """The rows as a file of the kind that `suffix` names, and the end mark of its directory."""
    path = tmp_path / f"rows{suffix}"
    if suffix == ".csv":
        text = HEADER + "".join(f"{at},{city},{n}\n" for at, city, n in rows)
    else:
        text = "".join(f'{{"at": "{at}", "city": "{city}", "n": {n}}}\n' for at, city, n in rows)
    path.write_bytes(text.encode(encoding))
    (tmp_path / "end").touch()
    return path


def results(source: Source[Row]) -> Any:
    flow = Flow("f")
    flow.source("rows", source, out=Row).sink("all", Table("t"))
    return run_flow(flow)


WITHOUT_MARK = 'it seems to be UTF-16 text without a byte-order mark: set encoding = "utf-16-le"'
ROWS = [("2020-01-01", "Ulm", "1"), ("2020-01-02", "Köln", "2"), ("2020-01-03", "Zürich", "3")]


@pytest.mark.parametrize(("make", "suffix"), KINDS)
def test_a_file_in_latin_1_says_at_which_line_and_byte_and_loses_no_other_row(
    make: Any, suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, suffix, ROWS, "latin-1")
    byte = path.read_bytes().splitlines()[-2].index(b"\xf6") + 1
    line = 3 if suffix == ".csv" else 2
    found = results(make(path))
    assert [value.city for _, value in found.tables["all"]] == ["Ulm"]
    place = f"{path.name}, line {line}: it is not UTF-8 text, at its byte {byte} (0xf6)"
    said = f'{place}: set encoding to that of the text, such as encoding = "cp1252"'
    assert found.dead_letters[0].reason == said
    assert len(found.dead_letters) == 2
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == [f"not_utf8: source rows: {said}; such rows of file {path} are dead letters"]


@pytest.mark.parametrize(("make", "suffix"), KINDS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"at,city,n\n", mtime=0), "is compressed by gzip: give it a name that ends in .gz"),
        (
            "at,city,n\n".encode("utf-16-le"),
            f"is no text that can be read: {WITHOUT_MARK}",
        ),
        (b"PK\x03\x04rest", "is a zip archive, such as a spreadsheet: write it as text"),
        (
            b"\x7fELF\x02\x01\x00rest",
            "is no text that can be read: it holds a NUL at its byte 7, as a binary file does",
        ),
    ],
)
def test_a_file_that_is_no_text_is_refused_before_anything_is_read(
    make: Any, suffix: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, suffix, [], "utf-8")
    path.write_bytes(content)
    with pytest.raises(SourceError) as error:
        results(make(path))
    assert str(error.value) == f"file {path} {said}"
    if make in (csv_file, json_file):
        with pytest.raises(SourceError):
            make(path).open("d1", "rows", Row)


@pytest.mark.parametrize(("make", "suffix"), KINDS)
def test_a_file_without_any_record_says_how_many_rows_it_has_and_what_is_wrong_with_the_first(
    make: Any, suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, suffix, [("01/02/2020", "Ulm", "1"), ("02/02/2020", "Ulm", "2")], "utf-8")
    found = results(make(path))
    assert len(found.dead_letters) == 2
    (warning,) = [record.getMessage() for record in caplog.records]
    start = f"no_records: source rows: none of the 2 rows of file {path} is a record; the first: "
    assert warning == start + found.dead_letters[0].reason
    assert "is not an ISO 8601 date or time" in warning


@pytest.mark.parametrize(("make", "suffix"), KINDS)
@pytest.mark.parametrize(
    ("written_as", "encoding", "rows_are"),
    [
        ("utf-8-sig", "", "utf-8"),
        ("utf-16", "", "utf-16-le"),
        ("utf-32", "", "utf-32-le"),
        ("utf-16-be", "utf-16-be", "utf-16-be"),
        ("cp1252", "cp1252", "cp1252"),
    ],
)
def test_a_file_is_read_by_its_mark_or_by_the_option(
    make: Any, suffix: str, written_as: str, encoding: str, rows_are: str, tmp_path: Path
) -> None:
    path = written(tmp_path, suffix, [*ROWS, ("2020-01-04", "Ulm", "x")], written_as)
    source = make(path).with_options({"encoding": encoding}, "here")
    found = results(source)
    assert [value.city for _, value in found.tables["all"]] == ["Ulm", "Köln", "Zürich"]
    line = path.read_bytes().decode(written_as).splitlines()[-1]
    (letter,) = found.dead_letters
    assert letter.raw.decode(rows_are) == line
    with pytest.raises(SourceError, match="source rows: encoding = 'klingon' cannot be read"):
        results(source.with_options({"encoding": "klingon"}, "here"))


@pytest.mark.parametrize("make", [csv_file, json_file])
def test_a_file_with_a_record_or_without_rows_says_nothing(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    suffix = ".csv" if make is csv_file else ".jsonl"
    assert results(make(written(tmp_path, suffix, [], "utf-8"))).dead_letters == []
    assert len(results(make(written(tmp_path, suffix, [*ROWS, ("x", "y", "z")], "utf-8"))).dead_letters) == 1
    assert caplog.records == []


def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", ROWS, "utf-8-sig")
    assert [value.n for _, value in results(json_file(path)).tables["all"]] == [1, 2, 3]


SUCH_AS = ", such as 'Köln', 'Ulm', 'Zürich'"


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (
            ["Bonn", "AAPL"],
            "select = ['AAPL', 'Bonn'] selects none of the 3 values in column city of file {path}" + SUCH_AS,
        ),
        (["Ulm", "Bonn"], "select names 'Bonn', which column city of file {path} does not hold"),
        (["Ulm"], ""),
        ([], ""),
    ],
)
def test_a_select_that_selects_nothing_warns_and_names_what_there_is(
    select: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, ".csv", [*ROWS, ("2020-01-04", "", "4")], "utf-8")
    source: CsvReplay[Row] = CsvReplay(
        path=str(path), time_column="at", partition_column="city", select=select
    )
    found = results(source)
    expected = {row[1] for row in ROWS} & set(select) if select else {"Ulm", "Köln", "Zürich", ""}
    assert {value.city for _, value in found.tables["all"]} == expected
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ([f"selects_nothing: source rows: {said.format(path=path)}"] if said else [])


def test_a_directory_of_which_no_name_fits_the_pattern_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows.CSV").write_text(HEADER)
    source: CsvDirectory[Row] = CsvDirectory(path=str(tmp_path), time_column="at")
    (split,) = source.open("d1", "rows", Row)

    async def read() -> None:
        for _ in range(3):
            assert (await split.read(0, 10)).position == 0

    asyncio.run(read())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        f"selects_nothing: source rows: pattern = '*.csv' fits none of the 1 names in directory {tmp_path}, "
        "such as 'rows.CSV'"
    )


def test_where_bytes_stop_being_utf_8() -> None:
    assert not_utf8("Zürich".encode()) is None
    assert not_utf8(b"abc\xe9") == "it is not UTF-8 text, at its byte 4 (0xe9)"
    assert not_utf8("é".encode()[:1]) == "it is not UTF-8 text, at its byte 1 (0xc3)"


def test_a_name_in_gz_that_is_no_gzip_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(b"at,city,n\n")
    with (
        pytest.raises(SourceError, match=r"rows\.csv\.gz cannot be read: it is not compressed"),
        open_text(str(path)),
    ):
        raise AssertionError("it was opened")


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    os.mkfifo(path)
    with pytest.raises(SourceError, match=r"rows\.csv is a pipe or a device"), open_text(str(path)):
        raise AssertionError("it was opened")
