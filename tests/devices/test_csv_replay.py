"""The CSV replay: order, positions, bad rows, partitions, types, speed, and files that cannot be read."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import SourceError
from geartrain.records.event_time import parse_time
from geartrain_devices.csv_replay import CsvReplay
from tests.devices.prices import Anything, Everything, Price, Prices, open_split, replay, write

UNQUOTED = 'set quote = "" where quotes are plain text'
HEADER = "symbol,date,price\n"


def prices(tmp_path: Path, rows: str | bytes, **options: Any) -> Prices:
    data = HEADER.encode() + (rows if isinstance(rows, bytes) else rows.encode())
    return Prices(path=write(tmp_path / "p.csv", data), **options)


def test_rows_come_in_order_of_time_and_then_of_line(tmp_path: Path) -> None:
    source = prices(
        tmp_path, "A,2020-01-03,1\nB,2020-01-01,2\nA,2020-01-03,3\nA,2020-01-01,4\nB,2020-01-02,5\n"
    )
    got = replay(open_split(source), limit=2)
    assert [value.price for value in got.values] == [2, 4, 5, 1, 3]
    assert got.times == sorted(got.times)
    assert got.numbers == [0, 1, 2, 3, 4]
    assert [poll.ended for poll in got.polls] == [False, False, True]
    assert open_split(source).name == "d1"


@pytest.mark.parametrize("start", range(6))
def test_any_position_gives_the_same_rest(tmp_path: Path, start: int) -> None:
    source = prices(
        tmp_path, "A,2020-01-03,1\nA,2020-01-01,x\nA,2020-01-01,2\nA,2020-01-02,-1\nA,2020-01-01,3\n"
    )
    whole, rest = replay(open_split(source)), replay(open_split(source), start, limit=1)
    assert rest.rows == [row for row in whole.rows if row[2] >= start]
    assert rest.rejects == [reject for reject in whole.rejects if reject.number >= start]


def test_reading_back_and_forth_gives_the_same_rows(tmp_path: Path) -> None:
    split = open_split(prices(tmp_path, "A,2020-01-03,1\nA,2020-01-02,2\nA,2020-01-01,3\n"))

    async def prices_at(*positions: int) -> list[float]:
        return [(await split.read(position, 1)).values[0].price for position in positions]

    assert asyncio.run(prices_at(2, 0, 1, 0)) == [1, 3, 2, 3]


def test_a_position_behind_the_end_says_that_the_file_has_changed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"p\.csv has 1 rows for d1, but 2 were read"):
        replay(open_split(prices(tmp_path, "A,2020-01-03,1\n")), start=2)


def test_an_empty_file_of_rows_ends_at_once(tmp_path: Path) -> None:
    got = replay(open_split(prices(tmp_path, "\n\n")))
    assert (got.rows, got.rejects, len(got.polls)) == ([], [], 1)


BAD = [
    (b"A,2020-01-01", "it has 2 columns and the header 3"),
    (b"A,2020-01-01,1,2", "it has 4 columns and the header 3"),
    (b"A,2020-01-01,abc", "column price: 'abc' is not a number"),
    (b"A,2020-01-01,1_000", "column price: '1_000' is not a number"),
    (b"A,2020-01-01,", "column price: '' is not a number"),
    ("A,2020-01-01,\u0661".encode(), "column price: '\u0661' is not a number"),
    (b"A,01/02/2020,1", "column date: '01/02/2020' is not an ISO 8601 date or time"),
    (b"A,2200-01-01,1", "column date: '2200-01-01' is not before 2200-01-01T00:00:00Z"),
    (b"A,2020-01-01,nan", "column price: 'nan' is no finite number: set nan = true"),
    (b"A,2020-01-01,-1", "the price -1.0 is not a finite number above 0"),
    (b"A,2020-01-01,1e999", "column price: '1e999' is beyond a float of 64 bits"),
    (b"BOOM,2020-01-01,1", "RuntimeError: the check itself fails"),
    (b"A\xff,2020-01-01,1", "it is not UTF-8 text"),
    (b"A\0,2020-01-01,1", "it holds a NUL at its byte 2, as a binary file does"),
    (
        b'"A"x,2020-01-01,1',
        "text follows the closing quote of column symbol: double each quote within quotes",
    ),
    (b"A," + b"9" * 140_000 + b",1", "column date: '99999999"),
    (b"A," * 600_000, "it is longer than 1048576 bytes: it has 1200002"),
    (b"A,2020-01-01\r,1", "it holds a carriage return outside of quotes"),
    (b'A,2020-01-01,"1', 'the quote of column price is not closed: close it, or set quote = ""'),
    (b"# no data,", 'it has 2 columns and the header 3: set comment = "#" where such lines are comments'),
    (b"A,2020-01-01,1,", "it has 4 columns and the header 3: set trailing_delimiter = true where rows end"),
    (b'A,2020-01-01,"1,5"', "column price: '1,5' is not a number: set decimal = \",\""),
    (b'A,2020-01-01,"1,500.0"', "column price: '1,500.0' is not a number: set thousands = \",\""),
    (
        b"A,2020-01-01,1.500.000",
        'column price: \'1.500.000\' is not a number: set decimal = "," and thousands = "."',
    ),
    (
        b"A,2020-01-01,N/A",
        "column price: 'N/A' is not a number: set null_values = [\"N/A\"] where it means a missing",
    ),
]


@pytest.mark.parametrize(("raw", "why"), BAD, ids=[why[:40] for _, why in BAD])
def test_a_bad_row_is_a_dead_letter_and_the_rest_goes_on(tmp_path: Path, raw: bytes, why: str) -> None:
    got = replay(open_split(prices(tmp_path, b"A,2020-01-02,1\r\n" + raw + b"\r\nA,2020-01-01,2\n")))
    assert [value.price for value in got.values] == [2, 1]
    (reject,) = got.rejects
    assert reject.reason.startswith(f"p.csv, line 3: {why}")
    assert (reject.raw, reject.number) == (raw[: 1 << 20], 0)
    assert got.numbers == [1, 2]


def test_bad_rows_rank_first_in_the_order_of_their_lines(tmp_path: Path) -> None:
    got = replay(open_split(prices(tmp_path, "A,2020-01-01,1\nA,2019-01-01,x\nA,2018-01-01,y\n")), limit=1)
    assert [(r.number, r.reason[:13], r.event_time) for r in got.rejects] == [
        (0, "p.csv, line 3", parse_time("2019-01-01")),
        (1, "p.csv, line 4", parse_time("2018-01-01")),
    ]
    assert got.numbers == [2]


def test_quoted_newlines_keep_the_line_where_the_row_begins(tmp_path: Path) -> None:
    rows = '"two\nlines",2020-01-01,1\n\n"three\n\nlines",2020-01-01,x\nA,2020-01-01,y\n'
    got = replay(open_split(prices(tmp_path, rows)))
    assert [value.symbol for value in got.values] == ["two\nlines"]
    assert [re.sub(":.*", "", reject.reason) for reject in got.rejects] == ["p.csv, line 5", "p.csv, line 8"]
    assert got.rejects[0].raw == b'"three\n\nlines",2020-01-01,x'


def test_an_open_quote_swallows_no_more_than_it_must(tmp_path: Path) -> None:
    got = replay(open_split(prices(tmp_path, 'A,2020-01-01,1\n"A,2020-01-01,2\nA,2020-01-01,3\n')))
    assert [value.price for value in got.values] == [1, 3]
    assert [(reject.reason, reject.code, reject.raw) for reject in got.rejects] == [
        (
            f"p.csv, line 3: the quote of column symbol is not closed: close it, or {UNQUOTED}",
            "unclosed_quote",
            b'"A,2020-01-01,2',
        )
    ]


def test_partitions_are_selected_and_the_rest_goes_to_the_device_that_takes_others(tmp_path: Path) -> None:
    rows = b"A,2020-01-01,1\nB,2020-01-01,2\nC,2020-01-01,3\n,2020-01-01,4\nA,bad,5\nC,bad,6\n\xff,bad,7\n"
    first = replay(open_split(prices(tmp_path, rows, select=["A", "B"], others=True)))
    second = replay(open_split(prices(tmp_path, rows, select=["C"])))
    assert [value.price for value in first.values] == [1, 2, 4]
    assert [value.price for value in second.values] == [3]
    assert [reject.raw for reject in first.rejects] == [b"A,bad,5", b"\xff,bad,7"]
    assert [reject.raw for reject in second.rejects] == [b"C,bad,6"]


def test_columns_are_matched_by_name_and_others_ignored(tmp_path: Path) -> None:
    text = "\ufeffvolume, price ,symbol,date\n7,1.5,A,2020-01-01\n"
    got = replay(open_split(Prices(path=write(tmp_path / "p.csv", text))))
    assert got.values == [Price("A", 1.5)]


def test_gzip_is_read_by_its_suffix(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv.gz", gzip.compress(f"{HEADER}A,2020-01-01,1\n".encode()))
    assert replay(open_split(Prices(path=path))).values == [Price("A", 1)]


def test_every_type_is_read(tmp_path: Path) -> None:
    text = "flag,count,ratio,name,raw,seen,maybe,note\ntrue,-3, 2.5 ,x,\u00e9,2020-01-01T12:00:00+01:00,,\n"
    path = write(tmp_path / "e.csv", text)
    got = replay(open_split(Anything(path=path), Everything))
    noon = datetime(2020, 1, 1, 11, tzinfo=UTC)
    assert got.values == [Everything(True, -3, 2.5, "x", "\u00e9".encode(), noon, None, None)]
    assert got.times == [parse_time("2020-01-01T11:00:00Z")]


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("flag", "maybe", "'maybe' is not true or false"),
        ("count", "9223372036854775808", "is not an integer of 64 bits"),
        ("count", "1.0", "'1.0' is not an integer"),
        ("ratio", "0x10", "'0x10' is not a number"),
        ("maybe", " ", "' ' is not a number"),
    ],
)
def test_a_value_of_another_type_names_its_column(tmp_path: Path, field: str, text: str, why: str) -> None:
    row = dict.fromkeys(("name", "raw", "maybe", "note"), "") | dict.fromkeys(("flag", "count", "ratio"), "1")
    row |= {"seen": "2020-01-01", field: text}
    path = write(tmp_path / "e.csv", f"{','.join(row)}\n{','.join(row.values())}\n")
    (reject,) = replay(open_split(Anything(path=path), Everything)).rejects
    assert reject.reason.startswith(f"e.csv, line 2: column {field}: ")
    assert why in reject.reason


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, r"none\.csv cannot be read: there is no such file"),
        ("p.csv", "", r"p\.csv is empty: its first line must name the columns"),
        (
            "p.csv",
            "symbol,date\nA,2020-01-01\n",
            r"p\.csv has no column 'price'; its columns: 'symbol', 'date'",
        ),
        ("p.csv", "symbol,price\n", r"p\.csv has no column 'date'"),
        ("p.csv", "symbol,date,price,price\n", r"p\.csv has more than one column 'price'"),
        (
            "p.csv",
            b"symbol,date,\xff\n",
            r"p\.csv: its first line must name the columns, but it is not UTF-8",
        ),
        ("p.csv.gz", "symbol,date,price\n", r"p\.csv\.gz cannot be read: it is not compressed by gzip"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, name: str, content: str | bytes | None, said: str
) -> None:
    path = str(tmp_path / name)
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(SourceError, match=said):
        open_split(Prices(path=path))


def test_a_gzip_file_cut_short_is_an_error_of_the_file(tmp_path: Path) -> None:
    whole = gzip.compress((HEADER + "".join(f"A,2020-01-01,{n}\n" for n in range(20_000))).encode())
    split = open_split(Prices(path=write(tmp_path / "p.csv.gz", whole[: len(whole) // 2])))
    with pytest.raises(SourceError, match=r"p\.csv\.gz cannot be read: what gzip packed ends too soon"):
        replay(split)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": ""}, r'source quotes has no file: set path = "FILE.csv" under \[sources.quotes\]'),
        ({"partition_column": "", "select": ["A"]}, "source quotes has select but no partition_column"),
        ({"partition_column": "city", "select": ["A"]}, "has no column 'city'"),
        ({"speed": "fast"}, "speed = 'fast' must be a number above 0"),
        ({"speed": 0.0}, "speed = 0.0 must be a number above 0"),
        ({"wait_from": "2020-01-01"}, "wait_from = '2020-01-01', but wait_for = '': set both"),
        ({"wait_from": "noon", "wait_for": "f"}, "wait_from = 'noon': "),
    ],
)
def test_an_option_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    source = prices(tmp_path, "A,2020-01-01,1\n").with_options(options, "agent.toml: [sources] quotes")
    with pytest.raises(SourceError, match=said):
        open_split(source)


def test_speed_holds_rows_back_until_they_are_due(tmp_path: Path) -> None:
    now_s = [100.0]

    class Timed(Prices):
        def monotonic_s(self) -> float:
            return now_s[0]

    rows = "A,2020-01-01,1\nA,2020-01-01T00:00:10,2\nA,2020-01-01T00:00:30,3\nA,bad,4\n"
    source = Timed(path=write(tmp_path / "p.csv", HEADER + rows), speed="10")
    split = open_split(source)

    async def steps() -> list[tuple[int, int, bool]]:
        seen, position = [], 0
        for moment in (100.0, 100.9, 101.0, 102.9, 103.0):
            now_s[0] = moment
            poll = await split.read(position, 100)
            position = poll.position
            seen.append((len(poll.values), len(poll.rejects), poll.ended))
        return seen

    assert asyncio.run(steps()) == [(1, 1, False), (0, 0, False), (1, 0, False), (0, 0, False), (1, 0, True)]


def test_rows_from_a_time_on_wait_for_a_file(tmp_path: Path) -> None:
    rows = "A,2020-01-01,1\nA,2020-01-02,2\nA,2020-01-03,3\nA,bad,4\n"
    moved = tmp_path / "moved"
    source = prices(tmp_path, rows, wait_from="2020-01-02", wait_for=str(moved))
    split = open_split(source)

    async def read(position: int) -> tuple[list[float], int, bool]:
        found = await split.read(position, 100)
        return [value.price for value in found.values], len(found.rejects), found.ended

    assert asyncio.run(read(0)) == ([1], 1, False)
    assert asyncio.run(read(2)) == ([], 0, False)
    moved.touch()
    assert asyncio.run(read(2)) == ([2, 3], 0, True)
    moved.unlink()  # what was let go stays so, and a restart behind it waits again
    assert asyncio.run(read(3)) == ([3], 0, True)
    assert asyncio.run(open_split(source).read(3, 100)).values == []


class Derived(CsvReplay[Price]):
    """Times are days since 2020; the symbol is what stands before the dash of a column `code`."""

    time_column: str = "day"
    partition_column: str = "symbol"

    def moment(self, text: str) -> int:
        if not text.isdigit():
            raise ValueError(f"{text!r} is no day")
        return parse_time("2020-01-01") + int(text) * 86_400_000_000

    def derived(self, column: str) -> tuple[str, Callable[[str], str]] | None:
        return ("code", self.symbol_of) if column == "symbol" else None

    @staticmethod
    def symbol_of(code: str) -> str:
        symbol, dash, _ = code.partition("-")
        if not dash:
            raise ValueError(f"{code!r} has no dash")
        return symbol


DERIVED = "day,code,price\n3,A-x,1\n1,B-y,2\nsoon,A-z,3\n2,A,4\n0,A-,5\n"


def test_times_may_have_another_form_and_a_column_may_follow_from_another(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", DERIVED.encode())
    got = replay(open_split(Derived(path=path)))
    assert [(value.symbol, value.price) for value in got.values] == [("A", 5), ("B", 2), ("A", 1)]
    assert got.times == [parse_time(f"2020-01-0{day}") for day in (1, 2, 4)]
    assert [reject.reason for reject in got.rejects] == [
        "p.csv, line 4: column day: 'soon' is no day",
        "p.csv, line 5: column symbol: 'A' has no dash",
    ]
    mine = replay(open_split(Derived(path=path, select=["A"])))
    assert [value.price for value in mine.values] == [5, 1]
    assert len(mine.rejects) == 1
    rest = replay(open_split(Derived(path=path, select=["B"], others=True)))
    assert ([value.price for value in rest.values], len(rest.rejects)) == ([2], 1)


def test_a_column_of_that_name_comes_before_what_it_follows_from(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", b"symbol,day,code,price\nZ,1,A-x,1\n")
    assert [value.symbol for value in replay(open_split(Derived(path=path))).values] == ["Z"]
    with pytest.raises(SourceError, match=r"p\.csv has no column 'code'"):
        open_split(Derived(path=write(tmp_path / "p.csv", b"day,price\n1,1\n")))


def test_a_survey_shows_partition_and_time_of_every_row(tmp_path: Path) -> None:
    source = Derived(path=write(tmp_path / "p.csv", DERIVED.encode()), select=["B"])
    days = [
        None if us is None else (us - parse_time("2020-01-01")) // 86_400_000_000
        for _, us in source.survey(Price)
    ]
    assert [part for part, _ in source.survey(Price)] == ["A", "B", "A", "", "A"]
    assert days == [3, 1, None, None, 0]
