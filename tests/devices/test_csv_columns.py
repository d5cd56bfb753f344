"""Columns that a CSV file seems to lack, numbers written as elsewhere, and the options that read both."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

from geartrain import Digits, Flow, Record, Source, Table
from geartrain.errors import SourceError
from geartrain.testing import run_flow
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory
from tests.devices.prices import write


class Reading(Record):
    sensor: str
    celsius: float


class Amount(Record):
    n: int
    x: float | None
    euros: Annotated[Decimal, Digits(12, 2)]
    note: str | None = None


def results(tmp_path: Path, text: str, kind: Any = Reading, **options: Any) -> Any:
    """What a file gives as one file, which is what it gives in a directory."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    path = write(folder / "in.csv", text)
    write(tmp_path / "in" / "end", "")
    found = []
    sources: tuple[Source[Any], ...] = (
        CsvReplay(path=path, time_column="time", as_recorded=True, **options),
        CsvDirectory(path=str(folder), time_column="time", last="end", **options),
    )
    for source in sources:
        flow = Flow("f")
        flow.source("readings", source, out=kind).sink("all", Table("t"))
        found.append(run_flow(flow))
    one, directory = found
    assert one.tables["all"] == directory.tables["all"]
    letters = [(letter.reason, letter.raw) for letter in one.dead_letters]
    assert letters == [(letter.reason, letter.raw) for letter in directory.dead_letters]
    return [value for _, value in one.tables["all"]], [letter.reason for letter in one.dead_letters]


def test_a_file_with_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    text = "time;sensor;celsius\n2024-01-01T00:00:00Z;a;1,5\n2024-01-01T00:00:01Z;b;2,5\n"
    with pytest.raises(SourceError) as error:
        results(tmp_path, text)
    assert str(error.value) == (
        f"file {tmp_path / 'in' / 'in.csv'} has no column 'sensor'; its columns: 'time;sensor;celsius': the "
        "header seems to be separated by ';': set delimiter = \";\""
    )
    records, letters = results(tmp_path, text, delimiter=";")
    assert records == []
    assert letters[0] == "in.csv, line 2: column celsius: '1,5' is not a number: set decimal = \",\""
    expected = [Reading("a", 1.5), Reading("b", 2.5)]
    assert results(tmp_path, text, delimiter=";", decimal=",") == (expected, [])
    assert results(tmp_path, "sep=;\n" + text, decimal=",") == (expected, [])


@pytest.mark.parametrize(
    ("text", "options", "advice"),
    [
        ("time\tsensor\tcelsius\n", {}, "the header seems to be separated by '\\t': set delimiter = \"\\t\""),
        ("time,sensor,celsius\n", {"delimiter": ";"},
         "the header seems to be separated by ',': set delimiter = \",\""),
        ("made by x\n\ntime,sensor,celsius\n", {}, "the header seems to be in line 3: set skip_lines = 2"),
        ("made by x\n'time'|'sensor'|'celsius'\n", {},
         "the header seems to be separated by '|' and in line 2: set delimiter = \"|\" and skip_lines = 1"),
        ("# made by x\n#\ntime,sensor,celsius\n", {}, 'the header seems to be in line 3: set comment = "#"'),
        ("Zeit,Ort,Grad\n", {}, "where these are other names for them, set names = [...]"),
        ("2024-01-01,a,1\n", {}, "where its first line is a row, set header = false and names = [...]"),
        ("Time,Sensor,Celsius\n", {}, "name the field as the file does, 'Sensor', letter by letter"),
        ("a,b,1\n", {"header": False, "names": ["time", "sensor"]}, "names = [...] must name each column"),
        ("a,b\n", {}, ""),
    ],
)  # fmt: skip
def test_a_header_without_a_column_names_the_option_that_finds_it(
    tmp_path: Path, text: str, options: dict[str, Any], advice: str
) -> None:
    with pytest.raises(SourceError, match=r"has no column '[a-z]+'; its columns: ") as error:
        results(tmp_path, text, **options)
    assert str(error.value).endswith(f"': {advice}" if advice else "'b'")


LET = "let the field be None, as in float | None"
MISSING = "it means a missing value"
ROW = "time;n;x;euros;note\n2024-01-01;{};{};{};{}\n"


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        (("1", "1,5", "2,50", "a"), {"decimal": ","}, Amount(1, 1.5, Decimal("2.50"), "a")),
        (("-1", "-,5", "+2,5", ""), {"decimal": ","}, Amount(-1, -0.5, Decimal("2.50"), None)),
        (("1.234", "1.234,5", "1.234.567,89", "a"), {"decimal": ",", "thousands": "."},
         Amount(1234, 1234.5, Decimal("1234567.89"), "a")),
        (("1,234", "1,234.5", "12,34,567.89", "a"), {"thousands": ","},
         Amount(1234, 1234.5, Decimal("1234567.89"), "a")),
        (("1'234", "1'234.5", "567.89", "a"), {"thousands": "'"},
         Amount(1234, 1234.5, Decimal("567.89"), "a")),
        (("1\u202f234", "1 234,5", "1\u00a0567,89", "a"), {"thousands": " ", "decimal": ","},
         Amount(1234, 1234.5, Decimal("1567.89"), "a")),
        (("1", "NA", "2", "-"), {"null_values": ["NA", "-"]}, Amount(1, None, Decimal(2), None)),
        (("1", " NA ", "2", " - "), {"null_values": ["NA", "-"]}, Amount(1, None, Decimal(2), None)),
        (("1", "1e3", "2", ""), {"decimal": ","}, Amount(1, 1000.0, Decimal(2), None)),
    ],
)  # fmt: skip
def test_numbers_are_read_as_the_options_have_them(
    tmp_path: Path, cells: tuple[str, ...], options: dict[str, Any], expected: Amount
) -> None:
    assert results(tmp_path, ROW.format(*cells), Amount, delimiter=";", **options) == ([expected], [])


@pytest.mark.parametrize(
    ("cells", "options", "reason"),
    [
        (("1", "1.5", "2", ""), {"decimal": ","},
         "column x: '1.5' is not a number as the options have it: set decimal = \".\""),
        (("1", "1,5", "2", ""), {"thousands": ","},
         "column x: '1,5' is not a number as the options have it: set decimal = \",\""),
        (("1", "1.23,4", "2", ""), {"decimal": ",", "thousands": "."},
         "column x: '1.23,4' is not a number as the options have it"),
        (("1", "1 234", "2", ""), {}, "column x: '1 234' is not a number: set thousands = \" \""),
        (("1'234", "1", "2", ""), {},
         "column n: \"1'234\" is not an integer of 64 bits: set thousands = \"'\""),
        (("1", "1", "1.234,50", ""), {},
         "column euros: '1.234,50' is not a decimal number: set decimal = \",\" and thousands = \".\""),
        (("", "1", "1", ""), {},
         f"column n: '' is not an integer of 64 bits: {LET}, where a value may be missing"),
        (("n/a", "1", "1", ""), {"null_values": ["NA"]},
         f"column n: 'n/a' is not an integer of 64 bits: set null_values = [\"n/a\"] where {MISSING}"),
        (("NA", "1", "1", ""), {"null_values": ["NA"]},
         f"column n: 'NA' means a missing value, and the field must have one: {LET[:4]}it{LET[13:]}"),
    ],
)  # fmt: skip
def test_a_number_written_otherwise_names_the_option_that_reads_it(
    tmp_path: Path, cells: tuple[str, ...], options: dict[str, Any], reason: str
) -> None:
    found = results(tmp_path, ROW.format(*cells), Amount, delimiter=";", **options)
    assert found == ([], [f"in.csv, line 2: {reason}"])


def test_names_in_place_of_a_header_or_of_that_in_the_file(tmp_path: Path) -> None:
    names = ["time", "sensor", "celsius"]
    row = "2024-01-01,a,1\n"
    assert results(tmp_path, row, header=False, names=names) == ([Reading("a", 1)], [])
    assert results(tmp_path, "Zeit,Ort,Grad\n" + row, names=names) == ([Reading("a", 1)], [])
