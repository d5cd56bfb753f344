"""Files of CSV and JSON lines, spoiled, and texts: each byte of them is accounted for.

Readers of `tests.security.fuzz`. The check is the sum: the bytes of all rows, of the lines passed over and of
the byte-order mark are those of the file, and each row is a record or a dead letter with a code.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from geartrain import Record
from geartrain.errors import SourceError
from geartrain_devices.csv_replay import csv_reader
from geartrain_devices.csv_rows import CsvOptions, PassedOver, read_rows
from geartrain_devices.file_order import RowReader
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.text_bytes import NotTextError, coding_of, decode_text
from tests.security.measured import Memory, Outcome, fast_folder
from tests.security.spoil import SEED, spoiled

_CSV = (
    'time,name,count\n2026-01-01,"a ""b""\nc",1\n2026-01-02,d,2\n2026-01-03,"5 inch,3\n2026-01-04,e,4\n',
    'time,name,count\r\n2026-01-01,"x, y",1\r\n\r\n# no row\r\n2026-01-02,,2,\r\n2026-01-03,f,-\r\n',
    "sep=;\ntime;name;count\n2026-01-01;größe;1.000\n2026-01-02;'z';2\n",
    'time,name,count\r2026-01-01,"a\rb",1\r2026-01-02,c,2\r',
)
_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "cp1252")
_JSON = (
    '{"time": "2026-01-01T00:00:00Z", "name": "a", "count": 1}\n\n{"time": "2026-01-01", "name": "größe"}\n',
    '{"time": "2026-01-02T00:00:00Z", "name": null}\r\n \r\n[1]\n{"time": "2026-01-02", "name": "b"}',
)


class Named(Record):
    """What the files hold."""

    name: str
    count: int | None = None


def csv_files(numbers: range) -> Outcome:
    """CSV files under options that fit them and that do not."""
    seeds = [(text.encode(name), name) for text in _CSV for name in _ENCODINGS]
    memory, refused = Memory(numbers), 0
    with fast_folder() as folder:
        path = Path(folder) / "in.csv"
        for number in numbers:
            memory.look(number)
            rng = Random(SEED + number)
            seed, name = rng.choice(seeds)
            path.write_bytes(data := spoiled(rng, [seed]))
            options = _options(rng, name)
            try:
                _check_csv(str(path), data, options)
            except SourceError:
                refused += 1
    return Outcome("csv_files", len(numbers) - refused, refused, memory.growth_bytes())


def _options(rng: Random, written_as: str) -> CsvOptions:
    has_header = rng.random() < 0.5
    return CsvOptions(
        delimiter=rng.choice((",", ",", ";")),
        quote=rng.choice(('"', '"', "'", "")),
        header=has_header,
        names=[] if has_header else ["time", "name", "count"],
        comment=rng.choice(("", "#")),
        trailing_delimiter=rng.random() < 0.3,
        line_end=rng.choice(("", "", "\r")),
        null_values=["-"],
        encoding=rng.choice(("", written_as if written_as not in ("utf-16", "utf-8-sig") else "")),
    )


def _check_csv(path: str, data: bytes, options: CsvOptions) -> None:
    passed_over = PassedOver()
    header, *rows = read_rows(path, options, passed_over)
    mark = len(coding_of(data, options.encoding).mark)
    size = mark + header.size + sum(row.size for row in rows) + passed_over.bytes
    if size != len(data):
        raise AssertionError(f"{size} of {len(data)} bytes of {data!r} under {options}")
    found = _results(csv_reader(path, "time", Named, options))
    if found != len(rows):
        raise AssertionError(f"{found} of {len(rows)} rows of {data!r} under {options}")


def _results(reader: RowReader) -> int:
    """How many records and dead letters there are."""
    count = 0
    for chunk in reader.chunks():
        for row in chunk.problems:
            if not row.code:
                raise AssertionError(f"a row is nothing: {row}")
        again = [reader.record(content) for content in chunk.contents]
        if repr(again) != repr(chunk.records):
            raise AssertionError(f"{again} were {chunk.records}")
        count += len(chunk)
    return count


def json_files(numbers: range) -> Outcome:
    """Files of JSON lines: a record or a dead letter for each line that is not blank."""
    seeds = [(text.encode(name), name) for text in _JSON for name in _ENCODINGS]
    memory, refused = Memory(numbers), 0
    with fast_folder() as folder:
        path = Path(folder) / "in.jsonl"
        for number in numbers:
            memory.look(number)
            rng = Random(SEED + number)
            seed, name = rng.choice(seeds)
            path.write_bytes(data := spoiled(rng, [seed]))
            encoding = name if name in ("utf-16-be", "cp1252") else ""
            source: JsonLines[Any] = JsonLines(path=str(path), as_recorded=True, encoding=encoding)
            try:
                (split,) = source.open("d", "s", Named)
                found = _results(split._reader)  # type: ignore[attr-defined]
            except SourceError:
                refused += 1
                continue
            if found != (lines := _lines(data, encoding)):
                raise AssertionError(f"{found} of {lines} lines of {data!r}")
    return Outcome("json_files", len(numbers) - refused, refused, memory.growth_bytes())


def _lines(data: bytes, encoding: str) -> int:
    """How many lines are not blank, told in another way than the reader tells them."""
    coding = coding_of(data[:256], encoding)
    unit, rest = coding.unit_bytes, data[len(coding.mark) :]
    lines = [b""]
    for at in range(0, len(rest), unit):
        lines[-1] += rest[at : at + unit]
        if rest[at : at + unit] == coding.line_feed:
            lines.append(b"")
    return sum(1 for line in lines if line.decode(coding.name, "replace").strip(_BLANKS[unit == 1]))


_BLANKS = (None, " \t\n\r\x0b\f")
"""What a blank line holds, in text of wide characters and in bytes."""


def texts(numbers: range) -> Outcome:
    """Texts in any encoding: what is read gives the same bytes again, and holds no NUL."""
    seeds = ["größe;1\n", "2026-01-01 ключ\r\n", "\U0001f600" * 9, "plain"]
    raw = [
        text.encode(name)
        for text in seeds
        for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be")
    ]
    memory, refused = Memory(numbers), 0
    for number in numbers:
        memory.look(number)
        rng = Random(SEED + number)
        data, encoding = spoiled(rng, raw), rng.choice(("", "", "utf-16-be", "cp1252", "gb18030", "utf-32"))
        try:
            text = decode_text(data, encoding)
        except NotTextError:
            refused += 1
            continue
        coding = coding_of(data[:256], encoding)
        again = coding.mark + text.encode(coding.name)
        if "\0" in text or (again != data and coding.name != "gb18030"):  # which has two ways for some
            raise AssertionError(f"{data!r} is {text!r}")
    return Outcome("texts", len(numbers) - refused, refused, memory.growth_bytes())
