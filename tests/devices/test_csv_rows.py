"""Which bytes of a CSV file are a row: quotes that nobody closes, long rows, lines that are passed over."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geartrain.errors import SourceError
from geartrain_devices.csv_rows import CsvOptions, PassedOver, Row, read_rows
from tests.devices.prices import write

UNREADABLE = "cannot be read: name one such as utf-8, utf-16-le, latin-1, cp1252, shift-jis or gb18030"
FIRST = "its first line must name the columns"
UNQUOTED = 'set quote = "" where quotes are plain text'
CARRIAGE = 'put the text in quotes, or set line_end = "\\r" where lines end so'
HEADER = "time,sensor,celsius\n"


def rows_of(path: str, **options: Any) -> list[Row]:
    """The rows below the header, of which and of the lines passed over each byte is counted once."""
    passed_over, given = PassedOver(), CsvOptions(**options)
    given.check_csv("source a")
    header, *rows = read_rows(path, given, passed_over)
    size = Path(path).stat().st_size
    assert header.size + sum(row.size for row in rows) + passed_over.bytes == size
    return rows


def split(tmp_path: Path, text: str | bytes, **options: Any) -> list[tuple[int, Any]]:
    """(line, its fields or its code) of each row."""
    rows = rows_of(write(tmp_path / "a.csv", text), **options)
    return [(row.line, row.fields if row.problem is None else row.code) for row in rows]


def timed(number: int, sensor: str = "a") -> str:
    return f"2024-01-01T00:00:{number % 60:02d}Z,{sensor},{number}\n"


def test_a_quote_that_nobody_closes_costs_its_own_line_and_is_named(tmp_path: Path) -> None:
    lines = [timed(number, '"5 inch' if number == 2 else "a") for number in range(10)]
    rows = rows_of(write(tmp_path / "a.csv", HEADER + "".join(lines)))
    assert [row.line for row in rows] == list(range(2, 12))
    (bad,) = [row for row in rows if row.problem]
    assert (bad.line, bad.raw, bad.code) == (4, lines[2].rstrip().encode(), "unclosed_quote")
    assert bad.problem == (
        'the quote of column sensor is not closed: close it, or set quote = "" where quotes are plain text'
    )
    assert rows_of(write(tmp_path / "a.csv", HEADER + "".join(lines)), quote="")[2].fields[1] == '"5 inch'


def test_a_quote_is_looked_for_ahead_no_further_than_a_row_may_go(tmp_path: Path) -> None:
    """The lines after it are more than a row's bytes."""
    lines = [timed(number, '"5 inch' if number == 2 else "a" * 20) for number in range(40_000)]
    found = split(tmp_path, HEADER + "".join(lines))
    assert len("".join(lines)) > 1 << 20
    assert [line for line, one in found if one == "unclosed_quote"] == [4]
    assert [line for line, _ in found] == list(range(2, 40_002))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('a,"x\ny",1\nb,z,2\n', [(2, ["a", "x\ny", "1"]), (4, ["b", "z", "2"])]),
        ('a,"x\r\n\r\ny",1\r\nb,z,2\r\n', [(2, ["a", "x\r\n\r\ny", "1"]), (5, ["b", "z", "2"])]),
        ('a,"say ""hi""\n""",1\n', [(2, ["a", 'say "hi"\n"', "1"])]),
        ('a,5" pipe,1\nb,"5"" pipe",1\n', [(2, ["a", '5" pipe', "1"]), (3, ["b", '5" pipe', "1"])]),
        # The next quote cannot close it, because text follows.
        ('a,"x,1\nb,"z",2\nc,z,3\n', [(2, "unclosed_quote"), (3, ["b", "z", "2"]), (4, ["c", "z", "3"])]),
        # The next quote would close it, and the row would have too few columns, or too many.
        ('"a,x,1\nb,z,2"\nc,z,3\n', [(2, "unclosed_quote"), (3, ["b", "z", '2"']), (4, ["c", "z", "3"])]),
        ('a,x,"1\nb",z,2\nc,z,3\n', [(2, "unclosed_quote"), (3, ['b"', "z", "2"]), (4, ["c", "z", "3"])]),
        ('a,"x"y,1\nb,z,2\n', [(2, "text_after_quote"), (3, ["b", "z", "2"])]),
        ('a,"x" ,1\nb,z,2', [(2, "text_after_quote"), (3, ["b", "z", "2"])]),
        ('a,"x', [(2, "unclosed_quote")]),
        ('a,x,"', [(2, "unclosed_quote")]),
        ('a,x,""\n', [(2, ["a", "x", ""])]),
        ("a,x\ry,1\nb,z,2\n", [(2, "lone_carriage_return"), (3, ["b", "z", "2"])]),
        ("a,x,1\r\r\n\r\n\nb,z,2\r", [(2, ["a", "x", "1"]), (5, ["b", "z", "2"])]),
        (b'a,"\xff\nx",1\nb,z,2\n', [(2, "not_utf8"), (4, ["b", "z", "2"])]),
        (b'a,"\xff,1\nb,z,2\n', [(2, "unclosed_quote"), (3, ["b", "z", "2"])]),
        (b'a,"\0",1\nb,z\0,2\nc,z,3\n', [(2, "not_text"), (3, "not_text"), (4, ["c", "z", "3"])]),
    ],
)  # fmt: skip
def test_where_rows_begin_and_end(tmp_path: Path, text: str | bytes, found: Any) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    assert split(tmp_path, HEADER.encode() + data) == found


@pytest.mark.parametrize("name", ["utf-16", "utf-32"])
def test_quotes_are_told_in_wide_text_as_well(tmp_path: Path, name: str) -> None:
    """Of the letter in the first row, a part looks like a quote."""
    text = HEADER + 'a,\u2200\u0022,1\nb,"x\n\u0a0d",2\nc,"z,3\nd,z,4\n'
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(name))
    _, *rows = read_rows(str(path))
    assert [row.fields if row.problem is None else row.code for row in rows] == [
        ["a", '\u2200"', "1"], ["b", "x\n\u0a0d", "2"], "unclosed_quote", ["d", "z", "4"]
    ]  # fmt: skip
    assert rows[2].raw.decode(f"{name}-le") == 'c,"z,3'


def test_a_quoted_field_may_have_a_mebibyte_in_one_line_or_in_many(tmp_path: Path) -> None:
    for text in ("x" * 1_048_000, "x\n" * 524_000):
        found = split(tmp_path, f'{HEADER}a,"{text}",1\nb,z,2\n')
        assert [fields for _, fields in found] == [["a", text, "1"], ["b", "z", "2"]]


def test_a_row_beyond_it_is_passed_over_with_its_size(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path / "a.csv", HEADER + "a," + "x" * 3_000_000 + ",1\nb,z,2\n"))
    assert (rows[0].problem, rows[0].size) == ("it is longer than 1048576 bytes: it has 3000005", 3_000_005)
    assert (len(rows[0].raw), rows[0].code) == (1 << 20, "too_long")
    assert rows[1].fields == ["b", "z", "2"]
    wide, high = "x" * 2_000_000, "x\n" * 700_000
    found = split(tmp_path, f'{HEADER}a,"{wide}",1\nb,"{high}",1\nc,z,2\n')
    assert [found[0], found[1]] == [(2, "too_long"), (3, "unclosed_quote")]
    assert found[-1] == (700_004, ["c", "z", "2"])


def test_quotes_on_each_line_do_not_have_each_line_look_through_all_that_follow(tmp_path: Path) -> None:
    """As a beginning, each line leaves a quote open; as what follows one, it closes and opens one."""
    lines = 30_000
    passed_over = PassedOver()
    path = write(tmp_path / "a.csv", HEADER + 'x","z\n' * lines)
    _, *rows = read_rows(path, CsvOptions(), passed_over)
    assert sum(row.size for row in rows) == 6 * lines
    assert {row.code for row in rows if row.problem} == {"unclosed_quote"}


OPTIONS: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("time;sensor;celsius\na;b;1,5\n", {"delimiter": ";"}, [["a", "b", "1,5"]]),
    ("time\tsensor\tcelsius\na\tb\t1\n", {"delimiter": "\t"}, [["a", "b", "1"]]),
    ("time\tsensor\tcelsius\na\tb\t1\n", {"delimiter": "\\t"}, [["a", "b", "1"]]),
    ("sep=;\ntime;sensor;celsius\na;b;1\n", {}, [["a", "b", "1"]]),
    ('"sep=|"\r\ntime|sensor|celsius\r\na|b|1\r\n', {}, [["a", "b", "1"]]),
    ("sep=;\nexport\ntime;sensor;celsius\na;b;1\n", {"skip_lines": 2}, [["a", "b", "1"]]),
    ("time,sensor,celsius\na,'b,c',1\n", {"quote": "'"}, [["a", "b,c", "1"]]),
    ('time,sensor,celsius\na,"b,1\n', {"quote": ""}, [["a", '"b', "1"]]),
    ("a,b,1\n", {"header": False, "names": ["time", "sensor", "celsius"]}, [["a", "b", "1"]]),
    ("when,who,what\na,b,1\n", {"names": ["time", "sensor", "celsius"]}, [["a", "b", "1"]]),
    ("made by x\n\ntime,sensor,celsius\na,b,1\n", {"skip_lines": 2}, [["a", "b", "1"]]),
    ("# made \"by\ntime,sensor,celsius\n#x,y\na,b,1\n#", {"comment": "#"}, [["a", "b", "1"]]),
    ("time,sensor,celsius\na,b,1,\n", {"trailing_delimiter": True}, [["a", "b", "1"]]),
    ("time,sensor,celsius,\na,b,1,\nc,d,2\n", {"trailing_delimiter": True},
     [["a", "b", "1"], ["c", "d", "2"]]),
    ("time,sensor,celsius\ra,\"b\rc\",1\rd,e,2", {"line_end": "\r"}, [["a", "b\rc", "1"], ["d", "e", "2"]]),
    ("time,sensor,celsius\r\n\"a\",b,1\r\n", {"line_end": "\r"}, [["a", "b", "1"]]),
    ("time,sensor,celsius\rd,e\nf,2", {"line_end": "\r"}, ["lone_carriage_return"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "found"), OPTIONS)
def test_options_say_how_a_file_is_written(
    tmp_path: Path, text: str, options: dict[str, Any], found: list[Any]
) -> None:
    path = write(tmp_path / "a.csv", text)
    assert next(read_rows(path, CsvOptions(**options))).fields == ["time", "sensor", "celsius"]
    assert [one for _, one in split(tmp_path, text, **options)] == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delimiter": ""}, "delimiter = '' must be one character"),
        ({"delimiter": ";;"}, "delimiter = ';;' must be one character"),
        ({"delimiter": "\n"}, "delimiter = '\\n' must be one character"),
        ({"quote": "''"}, "quote = \"''\" must be one character, or \"\" for none"),
        ({"quote": ","}, "quote = ',' has another meaning, too: set another character"),
        ({"decimal": "0"}, "decimal = '0' is a part of numbers: set another character"),
        ({"decimal": ""}, "decimal = '' must be one character"),
        ({"decimal": ",", "thousands": ","}, "thousands and decimal are both ',': set another character"),
        ({"decimal": ",", "quote": ""}, "numbers hold the delimiter ',': set quote as well"),
        ({"thousands": "-"}, "thousands = '-' is a part of numbers: set another character"),
        ({"line_end": "\n"}, 'line_end = \'\\n\' must be "" or "\\r"'),
        ({"comment": "#\n"}, "comment = '#\\n' must be a part of a line"),
        ({"header": False}, "header = false needs names = [...], the names of the columns in order"),
        ({"names": ["a", "b", "a"]}, "names has 'a' more than once"),
        ({"encoding": "klingon"}, f"encoding = 'klingon' {UNREADABLE}"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as error:
        CsvOptions(**options).check_csv("source a")
    assert str(error.value) == f"source a: {said}"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, "is empty: its first line must name the columns"),
        ("\n\n", {}, "is empty: its first line must name the columns"),
        ("a\nb\n", {"skip_lines": 3}, "has 2 lines, fewer than skip_lines = 3"),
        ("a,b\n", {"names": ["a", "b", "c"]}, "has 2 columns and names has 3: name each column"),
        ('a,"b\nc,d\n', {}, f"{FIRST}, but the quote of column 2 is not closed: close it, or {UNQUOTED}"),
        ("a,b\rc,d\r", {}, f"{FIRST}, but it holds a carriage return outside of quotes: {CARRIAGE}"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_name_its_columns_is_one_sentence(
    tmp_path: Path, text: str, options: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(SourceError) as error:
        next(read_rows(path, CsvOptions(**options)))
    assert str(error.value).removeprefix(f"file {path}").lstrip(": ") == said


FIELDS = st.text(st.sampled_from('ab,;"\n\r #'), max_size=6)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.tuples(FIELDS, FIELDS, FIELDS), max_size=6))
@example(rows=[("", "", "")])
def test_what_the_standard_library_writes_is_read_as_that_library_reads_it(
    rows: list[tuple[str, str, str]], tmp_path_factory: Any
) -> None:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(("time", "sensor", "celsius"))
    writer.writerows(rows)
    path = write(Path(tmp_path_factory.getbasetemp()) / "written.csv", written.getvalue())
    assert [row.fields for row in rows_of(path)] == [list(row) for row in rows]


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from('a1,"\n\r'), max_size=60))
@example(text='"\n"",\n')
def test_whatever_stands_in_a_file_each_byte_is_in_a_row_or_passed_over(
    text: str, tmp_path_factory: Any
) -> None:
    """And a row without a fault has the columns that the standard library finds in its bytes."""
    path = write(Path(tmp_path_factory.getbasetemp()) / "any.csv", HEADER + text)
    for row in rows_of(path):
        if row.problem is None and len(row.fields) == 3:
            lines = io.StringIO(row.raw.decode(), newline="")
            assert next(csv.reader(lines, strict=True)) == row.fields
