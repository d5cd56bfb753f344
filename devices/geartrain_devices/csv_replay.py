"""Replay a CSV file in event-time order: a source for recorded data.

Order, positions and origins are those of `geartrain_devices.file_replay`. From top to bottom: the source, how
a row becomes a record, how bytes become rows, how texts become values. Guarantees: a row that is no record
leaves as a dead letter with file, line and reason, and does not disturb the rows after it. Such a row has a
broken quote, a NUL, bytes that are not UTF-8, more than 1 MiB, or a value that is none. Memory is bounded by
one row. Only plain forms of values are taken (no `1_000`, no hexadecimal, no digits of other scripts), so
that a file means the same to every program that reads it.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.printable import shortened
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, format_time, parse_time, to_datetime
from geartrain.schema import Field, FieldType, Logical, Schema, derive, logicals
from geartrain.schema.storable import is_unicode
from geartrain.source import Split
from geartrain_devices.file_replay import NOT_A_RECORD, FileReplay, RecordedRow, RowReader
from geartrain_devices.text_bytes import NotTextError, check_encoding
from geartrain_devices.text_files import TextLines, open_text

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_VALUES_MAX = 10_000
"""Values of a partition column that are counted for a warning."""
_NAMED_MAX = 5
"""Values that a warning names."""


class CsvReplay(FileReplay[T]):
    """Records of type `T` from the rows of a CSV file, plain or gzip, columns matched to fields by name.

    An empty text is None in an optional field. A bad row is a dead letter by itself, never an error of the
    file. Subclasses may read another form of time: see `moment`.

    Args:
        path: the file, gzip if it ends in `.gz`.
        time_column: the column of event times: ISO 8601, UTC where it names no zone.
        partition_column: the column that says which device a row is for; empty where one device takes all.
        select: the values of it that this device takes, empty for all.
        others: this device also takes rows whose partition value is missing or cannot be read.
        speed: event seconds for each second of the clock, or `"max"`.
        as_recorded: replay the rows in the order of the file, not of their times.
        out_of_orderness_ms: how far the time of a row may then lie below the highest before it and not be
            late.
        since_1970: promises that no row is of an earlier time. One that is becomes a dead letter.
        encoding: how the text is written where no byte-order mark says so; empty for UTF-8.
    """

    time_column: str
    select: list[str] = field(default_factory=list)
    partition_column: str = ""
    others: bool = False
    encoding: str = ""

    def check(self, record: T) -> str | None:
        """Why `record` is refused, in a few words, or None where it is sound; subclasses say more."""
        return None

    def moment(self, text: str) -> int:
        """The event time that a text means.

        Args:
            text: of the time column; empty where there is no such column.

        Returns:
            Microseconds since 1970 UTC.

        Raises:
            ValueError: with a sentence; the row is then a dead letter.
        """
        return parse_moment(text)

    def derived(self, column: str) -> tuple[str, Callable[[str], str]] | None:
        """What a column follows from where the file lacks it.

        Args:
            column: its name.

        Returns:
            The name of another column, and a function of its text, which raises `ValueError` with a sentence.
            None where the file must have the column.
        """
        return None

    def survey(self, out: type[T]) -> Iterator[tuple[str, int | None]]:
        """Each row in turn, whoever takes it.

        Args:
            out: the type of the records.

        Yields:
            The text of its partition, empty where it has none, and its event time in microseconds, None where
            it is no record.

        Raises:
            SourceError: when the file cannot be read.
        """
        return _Layout.of(self, out).survey()

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file and column, or the option."""
        self.check_path(step)
        check_encoding(f"source {step}", self.encoding)
        if self.select and not self.partition_column:
            raise SourceError(
                f"source {step} has select but no partition_column: name the column to select by"
            )
        return [self.split(device, step, _Layout.of(self, out, f"source {step}"))]


class _Column(msgspec.Struct, frozen=True):
    """Where the text of a column stands in a row, and what is made of it, if anything."""

    index: int
    derive: Callable[[str], str] | None = None

    @staticmethod
    def of(source: CsvReplay[Any], header: list[str], name: str) -> _Column:
        found = None if name in header else source.derived(name)
        if found is None:
            return _Column(column_index(source.path, header, name))
        return _Column(column_index(source.path, header, found[0]), found[1])

    def text(self, fields: list[str]) -> str:
        """Of a row that is as wide as the header; raises `ValueError` with a sentence."""
        found = fields[self.index]
        return found if self.derive is None else self.derive(found)


class _Layout(msgspec.Struct, frozen=True):
    """How a row of one file becomes a record: where each field stands, and what makes it bad."""

    path: str
    width: int
    kind: Any
    schema: Schema
    logicals: tuple[Logical | None, ...]
    columns: tuple[_Column, ...]
    time_index: int | None
    time_column: str
    partition: _Column | None
    partition_column: str
    select: frozenset[str]
    others: bool
    check: Callable[[Any], str | None]
    moment: Callable[[str], int]
    source: str
    encoding: str

    @staticmethod
    def of(source: CsvReplay[Any], kind: Any, name: str = "a source") -> _Layout:
        path, schema = source.path, derive(kind)
        header = read_header(path, source.encoding)
        partition, time_column = source.partition_column, source.time_column
        return _Layout(
            path,
            len(header),
            kind,
            schema,
            logicals(kind),
            tuple(_Column.of(source, header, field.name) for field in schema.fields),
            column_index(path, header, time_column) if time_column else None,
            time_column,
            _Column.of(source, header, partition) if partition else None,
            partition,
            frozenset(source.select),
            source.others,
            source.check,
            source.moment,
            name,
            source.encoding,
        )

    def rows(self) -> Iterator[RecordedRow | None]:
        """One of each row below the header: None for a row of another device."""
        with closing(read_rows(self.path, self.encoding)) as rows:
            next(rows, None)
            missing, others = set(self.select), set[str]()
            for row in rows:
                part = self._part(row) if self.select else ""
                missing.discard(part)
                if not self.select or (part in self.select if part else self.others):
                    yield self._read(row)
                else:
                    if len(others) < _VALUES_MAX:
                        others.add(part)
                    yield None
        if missing:
            self._warn(sorted(missing), others)

    def _warn(self, missing: list[str], others: set[str]) -> None:
        """Say which values of `select` no row has; others: values that rows have and `select` has not."""
        named = ", ".join(map(shortened, missing[:_NAMED_MAX]))
        where = f"column {self.partition_column} of file {self.path}"
        if len(missing) < len(self.select):
            what = f"select names {named}, which {where} does not hold"
        else:
            values = sorted(others - {""})
            count = f"{len(values):,}{'' if len(others) < _VALUES_MAX else ' or more'}"
            some = ", ".join(map(shortened, values[:_NAMED_MAX]))
            what = f"select = [{named}] selects none of the {count} values in {where}"
            what += f", such as {some}" if some else ""
        _LOG.warning("selects_nothing: %s: %s", self.source, what)

    def survey(self) -> Iterator[tuple[str, int | None]]:
        """Partition and event time of each row."""
        with closing(read_rows(self.path, self.encoding)) as rows:
            next(rows, None)
            for row in rows:
                read = self._read(row)
                yield self._part(row), None if read.problem else read.time

    def _part(self, row: Row) -> str:
        """The text of a row's partition, empty where it has none that can be read."""
        if self.partition is None:
            return ""
        text = field_at(row, self.partition.index)
        try:
            return text if self.partition.derive is None else self.partition.derive(text)
        except ValueError:
            return ""

    def _read(self, row: Row) -> RecordedRow:
        time_us, code = None, row.code
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            if len(row.fields) != self.width:
                raise ValueError(f"it has {len(row.fields)} columns and the header {self.width}")
            time_us = self._time("" if self.time_index is None else row.fields[self.time_index])
            values = [
                self._value(field, logical, column, row.fields)
                for field, logical, column in zip(
                    self.schema.fields, self.logicals, self.columns, strict=True
                )
            ]
            problem = self.check(self.record(values))
        except ValueError as error:
            problem = str(error)
        except USER_ERRORS as error:  # the user's own check or constructor: the row is the letter
            problem = describe(error)
        else:
            if problem is None:
                return RecordedRow(row.line, time_us, values)
        where = f"{Path(self.path).name}, line {row.line}"
        return RecordedRow(row.line, time_us, [], f"{where}: {problem}", row.raw, code)

    def _time(self, text: str) -> int:
        try:
            time_us = self.moment(text)
        except ValueError as error:
            raise ValueError(f"column {self.time_column}: {error}") from None
        if EARLIEST_TIME <= time_us < END_OF_TIME:
            return time_us
        side, end = ("before", EARLIEST_TIME) if time_us < EARLIEST_TIME else ("not before", END_OF_TIME)
        raise ValueError(f"column {self.time_column}: {shortened(text)} is {side} {format_time(end)}")

    @staticmethod
    def _value(field: Field, logical: Logical | None, column: _Column, fields: list[str]) -> Any:
        """As a column holds it: that is what can be sorted on disk."""
        try:
            value = parse_field(field, logical, column.text(fields))
            return value if logical is None or value is None else logical.lower(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"column {field.name}: {error}") from None

    def record(self, values: list[Any]) -> Any:
        """The record of its columns' values."""
        if any(self.logicals):
            pairs = zip(self.logicals, values, strict=True)
            values = [v if logical is None or v is None else logical.lift(v) for logical, v in pairs]
        return values[0] if self.schema.scalar else self.kind(*values)


def csv_reader(path: str, time_column: str, kind: Any, encoding: str = "") -> RowReader:
    """The rows of one CSV file as records of the type `kind`; raises `SourceError` naming file and column."""
    return _Layout.of(CsvReplay[Any](path=path, time_column=time_column, encoding=encoding), kind)


ROW_BYTES_MAX = 1 << 20
"""Bytes of one row, quoted newlines included."""


class Row(msgspec.Struct, frozen=True):
    """One row: `line` it begins on (from 1), raw bytes without the line's end, its fields as text.

    problem: why it is no record, with its `code`; None where it can be one. `fields` of a row with a problem
    may be empty.
    """

    line: int
    raw: bytes
    fields: list[str]
    problem: str | None = None
    code: str = NOT_A_RECORD


class _Lines:
    """The lines of a file for `csv.reader`, which asks for one more while a quote is open."""

    def __init__(self, file: TextLines) -> None:
        self.coding = file.coding
        self._lines = file.lines(ROW_BYTES_MAX)
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
        _, line, size = next(self._lines)
        self._next_line += 1
        too_long = len(self.raw) + size > ROW_BYTES_MAX
        self.raw += line[: ROW_BYTES_MAX - len(self.raw)]
        if too_long:
            raise csv.Error(f"it is longer than {ROW_BYTES_MAX} bytes")
        return self.coding.decode(line)


def read_rows(path: str, encoding: str = "") -> Generator[Row, None, None]:
    """Every row of the file but blank lines, the header too; raises `SourceError` when it cannot be read."""
    with open_text(path, encoding) as file:
        lines = _Lines(file)
        reader = csv.reader(lines, strict=True)
        while True:
            lines.begin_row()
            problem, code = None, NOT_A_RECORD
            try:
                fields = next(reader, None)
            except csv.Error as error:
                fields, problem = [], str(error)
            except NotTextError as error:
                fields, problem, code = [], str(error), error.code
            if fields is None:
                return
            if fields or problem:
                yield Row(lines.begins, lines.coding.without_end(bytes(lines.raw)), fields, problem, code)


def read_header(path: str, encoding: str = "") -> list[str]:
    """The column names of the file's first row, without spaces around them; raises `SourceError`."""
    with closing(read_rows(path, encoding)) as rows:
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


_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
_BOOLS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def parse_field(field: Field, logical: Logical | None, text: str) -> Any:
    """The value of one field of a row; raises `ValueError` with a sentence that does not name the column.

    A field of a logical type is written as a decimal number, a member's name, or JSON.
    """
    if text == "" and field.optional:
        return None
    return logical.parse(text) if logical is not None else _PARSERS[field.type](text)


def _parse_float(text: str) -> float:
    if _FLOAT.fullmatch(text.strip()):
        return float(text)
    raise ValueError(f"{shortened(text)} is not a number")


def _parse_int(text: str) -> int:
    plain = text.strip()
    if _INT.fullmatch(plain) and len(plain) <= 20 and -(2**63) <= int(plain) < 2**63:
        return int(plain)
    raise ValueError(f"{shortened(text)} is not an integer of 64 bits")


def _parse_bool(text: str) -> bool:
    found = _BOOLS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{shortened(text)} is not true or false")
    return found


parse_moment = lru_cache(maxsize=4_096)(parse_time)  # days repeat


_PARSERS: dict[FieldType, Callable[[str], Any]] = {
    FieldType.BOOL: _parse_bool,
    FieldType.INT64: _parse_int,
    FieldType.FLOAT64: _parse_float,
    FieldType.STR: str,
    FieldType.BYTES: str.encode,
    FieldType.DATETIME: lambda text: to_datetime(parse_moment(text)),
}
