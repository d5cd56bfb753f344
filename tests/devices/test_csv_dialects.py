"""Files in every dialect that the options can name, written by the test, are read back equal from any row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import Digits, Record
from geartrain.records.event_time import from_datetime
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.json_lines import JsonLines
from tests.devices.prices import replay

NAMES = ("time", "name", "count", "ratio", "euros", "note")
LIKE_ASCII = ("utf-8", "cp1252", "latin-1", "shift-jis", "gb18030", "koi8-r")
WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


class Row(Record):
    name: str
    count: int
    ratio: float | None
    euros: Annotated[Decimal, Digits(15, 2)]
    note: str | None


class Dialect(msgspec.Struct, frozen=True):
    """How one file is written; has_mark: it begins with a byte-order mark; has_sep: with `sep=`."""

    options: dict[str, Any]
    encoding: str
    has_mark: bool
    has_sep: bool
    end: str

    def cell(self, text: str, *, is_quoted: bool) -> str:
        quote, delimiter = str(self.options["quote"]), self.options["delimiter"]
        if not is_quoted and not any(c in text for c in (delimiter, "\n", "\r", *quote)):
            return text
        return quote + text.replace(quote, quote * 2) + quote

    def number(self, value: int | float | Decimal) -> str:
        text = repr(value) if isinstance(value, float) else str(value)
        if "e" in text:  # of which the whole part may have no more than a digit
            return text.replace(".", self.options["decimal"])
        whole, point, rest = text.partition(".")
        sign, digits = whole[: -len(whole.lstrip("-"))] or "", whole.lstrip("-")
        grouped = f"{int(digits):,}".replace(",", self.options["thousands"])
        return sign + grouped + point.replace(".", self.options["decimal"]) + rest


@st.composite
def dialects(draw: st.DrawFn) -> Dialect:
    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    delimiter = pick(",", ";", "\t", "|", ":", " ")
    quote = pick('"', "'")
    decimal = pick(".", ",")
    thousands = pick(*({"", ".", ",", "'", " ", "_"} - {decimal, quote}))
    has_header = draw(st.booleans())
    encoding = pick(*LIKE_ASCII, *WIDE)
    has_mark = encoding.startswith("utf") and draw(st.booleans())
    has_sep = draw(st.booleans())
    skip_lines = pick(0, 1, 3)
    options = {
        "delimiter": delimiter,
        "quote": quote,
        "decimal": decimal,
        "thousands": thousands,
        "header": has_header,
        "names": [] if has_header and draw(st.booleans()) else list(NAMES),
        "skip_lines": skip_lines + has_sep if skip_lines else 0,
        "comment": pick("", "#", "//"),
        "trailing_delimiter": draw(st.booleans()),
        "line_end": pick("", "", "\r"),
        "null_values": pick([], ["NA"], ["-", "(none)"]),
    }
    return Dialect(options, encoding, has_mark, has_sep, "\r" if options["line_end"] else pick("\n", "\r\n"))


def names_of(encoding: str, quote: str) -> st.SearchStrategy[str]:
    """Texts that the encoding can write."""
    letters = {"cp1252": "ßé€", "latin-1": "ßé", "shift-jis": "表ソ", "gb18030": "表ß", "koi8-r": "ключ"}
    special = letters.get(encoding, "ß表\U0001f600\u0a0d\u220d")
    return st.text(st.sampled_from(special + "ab #,;|:\t\n\r\"'" + quote), min_size=1, max_size=8)


@st.composite
def files(draw: st.DrawFn) -> tuple[Dialect, list[Row], bytes]:
    dialect = draw(dialects())
    options = dialect.options
    marks = {"", *options["null_values"]}
    texts = names_of(dialect.encoding, options["quote"]).filter(lambda text: text.strip() not in marks)
    rows = [
        Row(
            draw(texts),
            draw(st.integers(-(2**63), 2**63 - 1)),
            draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
            draw(st.decimals(-(10**12), 10**12, places=2)) + 0,
            draw(st.none() | texts),
        )
        for _ in range(draw(st.integers(0, 6)))
    ]
    return dialect, rows, written(draw, dialect, rows)


def written(draw: st.DrawFn, dialect: Dialect, rows: list[Row]) -> bytes:
    """The file, by a writer of the test's own."""
    options, end = dialect.options, dialect.end
    lines = [f"sep={options['delimiter']}"] if dialect.has_sep else []
    lines += ["made by 'nobody"] * (options["skip_lines"] - len(lines) if options["skip_lines"] else 0)
    trailing = options["delimiter"] if options["trailing_delimiter"] and draw(st.booleans()) else ""

    def line(cells: list[str]) -> str:
        quoted = [dialect.cell(cell, is_quoted=draw(st.booleans())) for cell in cells]
        comment = options["comment"]
        if comment and quoted[0].startswith(comment):
            quoted[0] = dialect.cell(cells[0], is_quoted=True)
        return str(options["delimiter"].join(quoted)) + trailing

    if options["header"]:
        names = list(NAMES) if not options["names"] else [f"column {n}" for n in range(len(NAMES))]
        lines.append(line(names))
    for number, row in enumerate(rows):
        if draw(st.booleans()):
            lines.append(f"{options['comment']} no \"row'" if options["comment"] else "")
        missing = draw(st.sampled_from(["", *options["null_values"]]))
        time = (BEGAN + timedelta(seconds=number)).isoformat()
        ratio = missing if row.ratio is None else dialect.number(row.ratio)
        note = missing if row.note is None else row.note
        lines.append(
            line([time, row.name, dialect.number(row.count), ratio, dialect.number(row.euros), note])
        )
    text = end.join(lines) + (end if draw(st.booleans()) else "")
    return (("\ufeff" if dialect.has_mark else "") + text).encode(dialect.encoding)


@settings(max_examples=150, deadline=None)
@given(found=files(), start=st.integers(0, 6))
def test_a_file_in_any_dialect_is_read_back_equal_from_any_row_on(
    found: tuple[Dialect, list[Row], bytes], start: int, tmp_path_factory: Any
) -> None:
    dialect, rows, data = found
    path = Path(tmp_path_factory.getbasetemp()) / "dialect.csv"
    path.write_bytes(data)
    encoding = draw_option(dialect)
    source: CsvReplay[Row] = CsvReplay(
        path=str(path), time_column="time", encoding=encoding, **dialect.options
    )
    (split,) = source.open("d", "s", Row)
    got = replay(split, min(start, len(rows)), limit=2)
    assert not got.rejects
    assert got.values == rows[start:]
    assert got.numbers == list(range(min(start, len(rows)), len(rows)))
    times = [from_datetime(BEGAN + timedelta(seconds=number)) for number in range(len(rows))]
    assert got.times == times[start:]


def draw_option(dialect: Dialect) -> str:
    """The option `encoding`: what a mark says needs none."""
    return "" if dialect.has_mark or dialect.encoding == "utf-8" else dialect.encoding


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


class Document(Record):
    name: str
    count: int
    ratio: float | None = None


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1), st.none() | st.floats(allow_nan=False,
                                                                                      allow_infinity=False)),
                  max_size=6),
    encoding=st.sampled_from(["utf-8", *WIDE]),
    has_mark=st.booleans(),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", " \n"]), min_size=6, max_size=6),
    start=st.integers(0, 6),
)  # fmt: skip
def test_json_lines_in_any_encoding_are_read_back_equal_from_any_line_on(
    rows: list[tuple[str, int, float | None]],
    encoding: str,
    has_mark: bool,
    ends: list[str],
    start: int,
    tmp_path_factory: Any,
) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "lines.jsonl"
    text = "\ufeff" if has_mark else ""
    for number, (row, end) in enumerate(zip(rows, ends, strict=False)):
        document = {"time": number, "name": row[0], "count": row[1], "ratio": row[2], "other": [row[0]]}
        text += msgspec.json.encode(document).decode() + end
    path.write_bytes(text.encode(encoding))
    option = "" if has_mark or encoding == "utf-8" else encoding
    source: JsonLines[Document] = JsonLines(path=str(path), encoding=option)
    (split,) = source.open("d", "s", Document)
    got = replay(split, min(start, len(rows)), limit=2)
    assert not got.rejects
    assert got.values == [Document(*row) for row in rows[start:]]
    assert got.numbers == list(range(min(start, len(rows)), len(rows)))
