"""Replay a CSV file in event-time order: a source for recorded data.

Rows that are no records leave as dead letters with file, line and reason. Order, positions and origins are
those of `geartrain_devices.file_replay`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, format_time
from geartrain.schema import Field, Logical, Schema, derive, logicals
from geartrain.source import Split
from geartrain_devices.csv_rows import Row, column_index, field_at, read_header, read_rows
from geartrain_devices.csv_values import parse_field, parse_moment, shortened
from geartrain_devices.file_replay import FileReplay, RecordedRow, RowReader

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
    """

    time_column: str
    select: list[str] = field(default_factory=list)
    partition_column: str = ""
    others: bool = False

    def check(self, record: T) -> str | None:
        """Why `record` is refused, in a few words, or None where it is sound; subclasses say more."""
        return None

    def moment(self, text: str) -> int:
        """The event time that a text of the time column means, microseconds; the text is empty where there is
        no such column. Raises `ValueError` with a sentence.
        """
        return parse_moment(text)

    def derived(self, column: str) -> tuple[str, Callable[[str], str]] | None:
        """What a column follows from where the file lacks it: the name of another column, and a function of
        its text, which raises `ValueError` with a sentence. None where the file must have it.
        """
        return None

    def survey(self, out: type[T]) -> Iterator[tuple[str, int | None]]:
        """Of each row in turn, whoever takes it: the text of its partition, empty where it has none, and its
        event time, None where it is no record. Raises `SourceError`.
        """
        return _Layout.of(self, out).survey()

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file and column, or the option."""
        self.check_path(step)
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

    @staticmethod
    def of(source: CsvReplay[Any], kind: Any, name: str = "a source") -> _Layout:
        path, schema = source.path, derive(kind)
        header = read_header(path)
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
        )

    def rows(self) -> Iterator[RecordedRow | None]:
        """One of each row below the header: None for a row of another device."""
        with closing(read_rows(self.path)) as rows:
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
        with closing(read_rows(self.path)) as rows:
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
        time_us: int | None = None
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
        return RecordedRow(row.line, time_us, [], f"{where}: {problem}", row.raw, row.undecodable)

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


def csv_reader(path: str, time_column: str, kind: Any) -> RowReader:
    """The rows of one CSV file as records of the type `kind`; raises `SourceError` naming file and column."""
    return _Layout.of(CsvReplay[Any](path=path, time_column=time_column), kind)
