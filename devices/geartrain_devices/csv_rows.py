"""Rows of a CSV file, plain or gzip, each with the line it begins on and its raw bytes.

Under the CSV replay, before any parsing of values. Guarantees: bytes that are no row (a broken quote, a NUL,
text that is not UTF-8, a row of more than 1 MiB) are handed over with a reason. They do not disturb the rows
after them. Memory is bounded by one row. A file that cannot be read at all is a `SourceError` that names it.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Generator
from contextlib import closing
from typing import BinaryIO

import msgspec

from geartrain.errors import SourceError
from geartrain.schema.storable import is_unicode
from geartrain_devices.text_files import not_utf8, open_text, said

ROW_BYTES_MAX = 1 << 20
"""Bytes of one row, quoted newlines included."""

_BOM = b"\xef\xbb\xbf"


class Row(msgspec.Struct, frozen=True):
    """One row: `line` it begins on (from 1), raw bytes without the line's end, its fields as text.

    problem: why it is no record, None where it can be one. `fields` of a row with a problem may be empty, and
    bytes in them that are not UTF-8 stand as lone surrogates. undecodable: that there are such bytes is the
    problem.
    """

    line: int
    raw: bytes
    fields: list[str]
    problem: str | None = None
    undecodable: bool = False


class _Lines:
    """The lines of a file for `csv.reader`, which asks for one more while a quote is open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._next_line = 1
        self.begins = 1
        self.raw = bytearray()

    def __iter__(self) -> _Lines:
        return self

    def begin_row(self) -> None:
        """The next line asked for begins a row."""
        self.begins = self._next_line
        self.raw.clear()

    def __next__(self) -> str:
        line = self._file.readline(ROW_BYTES_MAX + 1)
        if not line:
            raise StopIteration
        if self._next_line == 1:
            line = line.removeprefix(_BOM)
        self._next_line += 1
        whole = line.endswith(b"\n")
        while not whole:  # the rest of a line that is too long, or the last one without an end
            rest = self._file.readline(ROW_BYTES_MAX)
            if not rest:
                break
            whole = rest.endswith(b"\n")
        too_long = len(self.raw) + len(line) > ROW_BYTES_MAX
        self.raw += line[: ROW_BYTES_MAX - len(self.raw)]
        if too_long:
            raise csv.Error(f"it is longer than {ROW_BYTES_MAX} bytes")
        return line.decode("utf-8", "surrogateescape")


def read_rows(path: str) -> Generator[Row, None, None]:
    """Every row of the file but blank lines, the header too; raises `SourceError` when it cannot be read."""
    try:
        with open_text(path) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, strict=True)
            while True:
                lines.begin_row()
                problem = None
                try:
                    fields = next(reader, None)
                except csv.Error as error:
                    fields, problem = [], str(error)
                if fields is None:
                    return
                if fields or problem:
                    raw = bytes(lines.raw).rstrip(b"\r\n")
                    undecodable = None if problem else _undecodable(fields, raw)
                    problem = problem or undecodable or _problem(fields)
                    yield Row(lines.begins, raw, fields, problem, undecodable is not None)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"file {path} cannot be read: {said(error)}") from None


def _undecodable(fields: list[str], raw: bytes) -> str | None:
    """Why a row is not UTF-8, None where it is."""
    return None if all(map(str.isascii, fields)) else not_utf8(raw)


def _problem(fields: list[str]) -> str | None:
    return "it holds a NUL byte" if any("\0" in field for field in fields) else None


def read_header(path: str) -> list[str]:
    """The column names of the file's first row, without spaces around them; raises `SourceError`."""
    with closing(read_rows(path)) as rows:
        first = next(rows, None)
    if first is None:
        raise SourceError(f"file {path} is empty: its first line must name the columns")
    if first.problem is not None:
        raise SourceError(f"file {path}: its first line must name the columns, but {first.problem}")
    return [name.strip() for name in first.fields]


def column_index(path: str, header: list[str], column: str) -> int:
    """Where `column` stands in the header; raises `SourceError` when it is missing or there twice."""
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise SourceError(f"file {path} has more than one column {column!r}: rename all but one")
    listed = ", ".join(repr(name) for name in header)
    raise SourceError(f"file {path} has no column {column!r}; its columns: {listed}")


def field_at(row: Row, index: int) -> str:
    """The text of a field that could be read, else the empty text: for choosing rows by their partition."""
    field = row.fields[index] if index < len(row.fields) else ""
    return field if is_unicode(field) and "\0" not in field else ""


def partition_values(path: str, column: str) -> list[str]:
    """The distinct values of a column, sorted, without the missing one: what can be dealt to devices."""
    index = column_index(path, read_header(path), column)
    with closing(read_rows(path)) as rows:
        next(rows, None)
        return sorted({field_at(row, index) for row in rows} - {""})
