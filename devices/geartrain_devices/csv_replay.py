"""Replay a CSV file in event-time order: a source for recorded data.

Born here is a record's origin: its number is its rank in (event time, line) order, which is the split's
position too, so that a restart goes on at the very record (exactly once). Rows that are no records rank
first, in line order, and leave as dead letters with file, line and reason. The file may be larger than
memory; it must not change while a flow that reads it goes on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from geartrain.errors import SourceError
from geartrain.event_time import END_OF_TIME, format_time
from geartrain.operators.conform import describe
from geartrain.schema import Field, Logical, Schema, derive, logicals
from geartrain.source import Poll, Reject, Source, Split
from geartrain_devices.csv_rows import Row, column_index, field_at, read_header, read_rows
from geartrain_devices.csv_values import parse_field, parse_moment, shortened
from geartrain_devices.external_sort import Entry, SortedRows

T = TypeVar("T")

_BAD, _GOOD = 0, 1
_TURN_ROWS = 1_000
_POLL_BYTES_MAX = 1 << 20
_ROW_OVERHEAD_BYTES = 300


class CsvReplay(Source[T]):
    """Records of type `T` from the rows of a CSV file, columns matched to fields by name.

    path: the file, gzip if it ends in `.gz`; time_column: the column of event times (ISO 8601, UTC where
    it names no zone); select: the values of partition_column that this device takes, empty for all;
    others: this device also takes rows whose partition value is missing or cannot be read; speed: event
    seconds per wall second, or `max`. An empty text is None in an optional field. A bad row is a dead
    letter by itself, never an error of the file.
    """

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    time_column: str
    path: str = ""
    select: list[str] = field(default_factory=list)
    partition_column: str = ""
    others: bool = False
    speed: str | float = "max"

    def check(self, record: T) -> str | None:
        """Why `record` is refused, in a few words, or None where it is sound; subclasses say more."""
        return None

    def monotonic_s(self) -> float:
        """The seconds that `speed` is measured by; a test may have its own."""
        return time.monotonic()

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file and column, or the option."""
        if not self.path:
            raise SourceError(f'source {step} has no file: set path = "FILE.csv" under [sources.{step}]')
        if self.select and not self.partition_column:
            raise SourceError(
                f"source {step} has select but no partition_column: name the column to select by"
            )
        layout = _Layout.of(self, out)
        return [_CsvSplit(f"{device}/{step}", layout, self._speed(step), self.monotonic_s)]

    def _speed(self, step: str) -> float:
        if self.speed == "max":
            return math.inf
        try:
            speed = float(self.speed)
        except ValueError:
            speed = math.nan
        if not 0 < speed < math.inf:
            raise SourceError(f'source {step}: speed = {self.speed!r} must be a number above 0 or "max"')
        return speed


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a row of one file becomes a record: where each field stands, and what makes it bad."""

    path: str
    width: int
    kind: Any
    schema: Schema
    logicals: tuple[Logical | None, ...]
    columns: tuple[int, ...]
    time_index: int
    time_column: str
    partition_index: int | None
    select: frozenset[str]
    others: bool
    check: Callable[[Any], str | None]

    @staticmethod
    def of(source: CsvReplay[Any], kind: Any) -> _Layout:
        path, schema = source.path, derive(kind)
        header = read_header(path)
        partition = column_index(path, header, source.partition_column) if source.select else None
        return _Layout(
            path,
            len(header),
            kind,
            schema,
            logicals(kind),
            tuple(column_index(path, header, field.name) for field in schema.fields),
            column_index(path, header, source.time_column),
            source.time_column,
            partition,
            frozenset(source.select),
            source.others,
            source.check,
        )

    def entries(self) -> Iterator[Entry | None]:
        """One of each row below the header: None for a row of another device."""
        with closing(read_rows(self.path)) as rows:
            next(rows, None)
            for row in rows:
                yield self._entry(row) if self._mine(row) else None

    def _mine(self, row: Row) -> bool:
        if self.partition_index is None:
            return True
        value = field_at(row, self.partition_index)
        return value in self.select if value else self.others

    def _entry(self, row: Row) -> Entry:
        time_us: int | None = None
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            if len(row.fields) != self.width:
                raise ValueError(f"it has {len(row.fields)} columns and the header {self.width}")
            time_us = self._time(row.fields[self.time_index])
            values = [
                self._value(field, logical, row.fields[index])
                for field, logical, index in zip(self.schema.fields, self.logicals, self.columns, strict=True)
            ]
            problem = self.check(self.record(values))
        except ValueError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - the user's own check or constructor: the row is the letter
            problem = describe(error)
        else:
            if problem is None:
                return Entry(_GOOD, time_us, row.line, values)
        where = f"{Path(self.path).name}, line {row.line}"
        return Entry(_BAD, 0, row.line, [f"{where}: {problem}", row.raw, time_us])

    def _time(self, text: str) -> int:
        try:
            time_us = parse_moment(text)
        except ValueError as error:
            raise ValueError(f"column {self.time_column}: {error}") from None
        if time_us >= END_OF_TIME:
            raise ValueError(
                f"column {self.time_column}: {shortened(text)} is not before {format_time(END_OF_TIME)}"
            )
        return time_us

    @staticmethod
    def _value(field: Field, logical: Logical | None, text: str) -> Any:
        """As a column holds it: that is what can be sorted on disk."""
        try:
            value = parse_field(field, logical, text)
            return value if logical is None or value is None else logical.lower(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"column {field.name}: {error}") from None

    def record(self, values: Sequence[Any]) -> Any:
        """The record of its columns' values."""
        if any(self.logicals):
            pairs = zip(self.logicals, values, strict=True)
            values = [v if logical is None or v is None else logical.lift(v) for logical, v in pairs]
        return values[0] if self.schema.scalar else self.kind(*values)


class _CsvSplit:
    """The rows of one file that this device takes. Sorts on the first read, a few rows a turn of the loop."""

    out_of_orderness_us = 0

    def __init__(self, name: str, layout: _Layout, speed: float, monotonic_s: Callable[[], float]) -> None:
        self.name = name
        self._layout, self._speed, self._monotonic_s = layout, speed, monotonic_s
        self._sorted: SortedRows | None = None
        self._waiting: Iterator[Entry] = iter(())
        self._next: Entry | None = None
        self._at = -1
        self._anchor: tuple[int, float] | None = None

    async def read(self, position: int, limit: int) -> Poll:
        """Up to `limit` rows from rank `position` on, fewer where they are large or not yet due."""
        if self._sorted is None:
            self._sorted = await self._sort()
        if position != self._at:
            self._seek(self._sorted, position)
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        size_bytes = 0
        while (entry := self._next) is not None and len(values) + len(rejects) < limit and self._due(entry):
            if entry.kind == _GOOD:
                values.append(self._layout.record(entry.content))
                times.append(entry.time)
                numbers.append(self._at)
            else:
                reason, raw, time_us = entry.content
                rejects.append(Reject(self._at, reason, raw, time_us))
            size_bytes += _size(entry)
            self._at += 1
            self._next = next(self._waiting, None)
            if size_bytes >= _POLL_BYTES_MAX:
                break
        return Poll(values, times, numbers, self._at, rejects, ended=self._next is None)

    async def close(self) -> None:
        """Drop the sorted rows."""
        if self._sorted is not None:
            self._sorted.close()
            self._sorted = None
            self._at = -1

    async def _sort(self) -> SortedRows:
        rows = SortedRows()
        try:
            for number, entry in enumerate(self._layout.entries(), 1):
                if entry is not None:
                    rows.add(entry, _size(entry))
                if number % _TURN_ROWS == 0:
                    await asyncio.sleep(0)  # the uplink and the signals get their turn
            rows.finish()
        except BaseException:
            rows.close()
            raise
        return rows

    def _seek(self, rows: SortedRows, position: int) -> None:
        if position > len(rows):
            raise SourceError(
                f"file {self._layout.path} has {len(rows)} rows for {self.name}, but {position} were read "
                "from it before: it must not change while a flow that reads it goes on"
            )
        self._waiting = rows.read(position)
        self._next = next(self._waiting, None)
        self._at = position

    def _due(self, entry: Entry) -> bool:
        if self._speed == math.inf or entry.kind == _BAD:
            return True
        now_s = self._monotonic_s()
        if self._anchor is None:
            self._anchor = (entry.time, now_s)
        first_us, began_s = self._anchor
        return entry.time - first_us <= (now_s - began_s) * self._speed * 1_000_000


def _size(entry: Entry) -> int:
    """About how many bytes an entry takes in memory."""
    size_bytes = _ROW_OVERHEAD_BYTES
    for part in entry.content:
        if isinstance(part, str | bytes):
            size_bytes += len(part)
    return size_bytes
