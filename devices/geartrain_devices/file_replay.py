"""Replay a file: what all sources that read recorded rows have in common.

Born here is a record's origin: its number is the row's rank in the order of the replay, which is the split's
position, too. So a restart goes on at the very record (exactly once). Rows are replayed in (event time, line)
order, those that are no records first; or, with `as_recorded`, in the order of their lines, where a row may
be late. The file may be larger than memory; it must not change while a flow that reads it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from geartrain.declarations.options import Count, FilePath
from geartrain.errors import SourceError
from geartrain.records.event_time import parse_time
from geartrain.source import Batch, Reject, Source
from geartrain_devices.external_sort import Entry, SortedRows
from geartrain_devices.no_record import NOT_A_RECORD
from geartrain_devices.pace import speed_of
from geartrain_devices.text_bytes import TEXT_CODES

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_TURN_ROWS = 1_000
_POLL_BYTES_MAX = 1 << 20
_ROW_OVERHEAD_BYTES = 300


class RecordedRow(msgspec.Struct, frozen=True):
    """A row of a file: the line it begins on; its event time, microseconds, and the columns of its record.

    Or, where it is no record, `problem` (a sentence) with its `code`, its raw bytes, and its time if it has
    one.
    """

    line: int
    time: int | None
    columns: list[Any]
    problem: str = ""
    raw: bytes = b""
    code: str = NOT_A_RECORD


class RowReport:
    """What a person should know of a file as a whole, said in the log by a warning with a name.

    `not_utf8`, `not_encoded` or `not_text`: at the first row that is no text of the file's encoding;
    `no_records`: where all rows of the file are dead letters.
    """

    def __init__(self, source: str, path: str) -> None:
        """source: how the log calls it, `source quotes`."""
        self._source, self._path = source, path
        self._rows = self._records = 0
        self._first = ""
        self._told = False

    def saw(self, row: RecordedRow) -> None:
        """Take notice of a row."""
        self._rows += 1
        if not row.problem:
            self._records += 1
            return
        self._first = self._first or row.problem
        if row.code in TEXT_CODES and not self._told:
            self._told = True
            _LOG.warning(
                "%s: %s: %s; such rows of file %s are dead letters",
                *(row.code, self._source, row.problem, self._path),
            )

    def end(self) -> None:
        """The file has ended."""
        if self._rows and not self._records:
            _LOG.warning(
                "no_records: %s: none of the %d rows of file %s is a record; the first: %s",
                *(self._source, self._rows, self._path, self._first),
            )


class RowReader(Protocol):
    """How the rows of one file are read."""

    @property
    def path(self) -> str:
        """The file, for errors."""
        ...

    def rows(self) -> Iterator[RecordedRow | None]:
        """One of each row: None for one of another device. Raises `SourceError`."""
        ...

    def record(self, columns: list[Any]) -> Any:
        """The record of a row's columns."""
        ...


class FileReplay(Source[T]):
    """Base of the sources that replay a file; these options all of them have.

    Args:
        path: the file, gzip if it ends in `.gz`.
        speed: event seconds for each second of the clock, or `"max"`.
        wait_from: rows from this time on, such as `2026-01-01T12:00:00Z`, wait for the file `wait_for`.
        wait_for: the file that lets them go, once it is there, whatever is in it.
        as_recorded: replay the rows in the order of the file, not of their times.
        out_of_orderness_ms: how far the time of a row may then lie below the highest before it and not be
            late.
        since_1970: promises that no row is of an earlier time, so that Spark's own windows may be used
            (docs/time.md). One that is becomes a dead letter.
    """

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True

    path: FilePath = ""
    speed: str | float = "max"
    wait_from: str = ""
    wait_for: FilePath = ""
    as_recorded: bool = False
    out_of_orderness_ms: Count = 0
    since_1970: bool = False

    @property
    def keeps_order(self) -> bool:
        """Rows come in the order of time unless they are replayed as recorded."""
        return not self.as_recorded

    def monotonic_s(self) -> float:
        """The seconds that `speed` is measured by; a test may have its own."""
        return time.monotonic()

    def split(self, device: str, step: str, rows: RowReader) -> ReplaySplit:
        """The one split of a device; raises `SourceError` for an option that cannot be."""
        if self.out_of_orderness_ms < 0:
            raise SourceError(f"source {step}: out_of_orderness_ms = {self.out_of_orderness_ms} is negative")
        if bool(self.wait_from) is not bool(self.wait_for):
            raise SourceError(
                f"source {step}: wait_from = {self.wait_from!r}, but wait_for = {self.wait_for!r}: set both, "
                "or neither"
            )
        split = ReplaySplit(f"source {step}", device, rows, speed_of(step, self.speed), self.monotonic_s)
        split.as_recorded = self.as_recorded
        split.halt = None if not self.wait_for else (self._moment(step), Path(self.wait_for))
        split.out_of_orderness_us = self.out_of_orderness_ms * 1_000 if self.as_recorded else 0
        return split

    def _moment(self, step: str) -> int:
        try:
            return parse_time(self.wait_from)
        except ValueError as error:
            raise SourceError(f"source {step}: wait_from = {self.wait_from!r}: {error}") from None

    def check_path(self, step: str) -> None:
        """Raise `SourceError` where no file is named."""
        if not self.path:
            raise SourceError(f'source {step} has no file: set path = "FILE.csv" under [sources.{step}]')


class ReplaySplit:
    """The rows of one file that a device takes. Sorts on the first read, a few rows a turn of the loop."""

    out_of_orderness_us = 0
    as_recorded = False
    halt: tuple[int, Path] | None = None
    """From this time on rows wait until the file is there, microseconds."""

    def __init__(
        self, source: str, name: str, rows: RowReader, speed: float, monotonic_s: Callable[[], float]
    ) -> None:
        """source: how the log calls it, `source quotes`; name: of the split."""
        self.name = name
        self._reader, self._speed, self._monotonic_s = rows, speed, monotonic_s
        self._report = RowReport(source, rows.path)
        self._sorted: SortedRows | None = None
        self._waiting: Iterator[Entry] = iter(())
        self._next: Entry | None = None
        self._at = -1
        self._anchor: tuple[int, float] | None = None

    async def read(self, position: int, limit: int) -> Batch:
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
            problem, time_us, content, code = entry.content
            if problem:
                rejects.append(Reject(self._at, problem, content, time_us, code))
            else:
                values.append(self._reader.record(content))
                times.append(time_us)
                numbers.append(self._at)
            size_bytes += _size(entry.content)
            self._at += 1
            self._next = next(self._waiting, None)
            if size_bytes >= _POLL_BYTES_MAX:
                break
        return Batch(values, times, numbers, self._at, rejects, ended=self._next is None)

    async def close(self) -> None:
        """Drop the sorted rows."""
        if self._sorted is not None:
            self._sorted.close()
            self._sorted = None
            self._at = -1

    async def _sort(self) -> SortedRows:
        ranked = SortedRows()
        try:
            for number, row in enumerate(self._reader.rows(), 1):
                if row is not None:
                    self._report.saw(row)
                    entry = self._entry(row)
                    ranked.add(entry, _size(entry.content))
                if number % _TURN_ROWS == 0:
                    await asyncio.sleep(0)  # the uplink and the signals get their turn
            ranked.finish()
            self._report.end()
        except BaseException:
            ranked.close()
            raise
        return ranked

    def _entry(self, row: RecordedRow) -> Entry:
        # A record has no code: empty texts and None cost a byte each on disk.
        content = (
            [row.problem, row.time, row.raw, row.code] if row.problem else ["", row.time, row.columns, ""]
        )
        if self.as_recorded:
            return Entry(0, 0, row.line, content)
        return Entry(0, 0, row.line, content) if row.problem else Entry(1, row.time or 0, row.line, content)

    def _seek(self, ranked: SortedRows, position: int) -> None:
        if position > len(ranked):
            raise SourceError(
                f"file {self._reader.path} has {len(ranked)} rows for {self.name}, but {position} were read "
                "from it before: it must not change while a flow that reads it goes on"
            )
        self._waiting = ranked.read(position)
        self._next = next(self._waiting, None)
        self._at = position

    def _due(self, entry: Entry) -> bool:
        problem, time_us, *_ = entry.content
        if self.halt is not None and time_us is not None and time_us >= self.halt[0]:
            if not self.halt[1].exists():
                return False
            self.halt = self._anchor = None  # the pace begins again here
        if self._speed == math.inf or problem:
            return True
        now_s = self._monotonic_s()
        if self._anchor is None:
            self._anchor = (time_us, now_s)
        first_us, began_s = self._anchor
        return bool(time_us - first_us <= (now_s - began_s) * self._speed * 1_000_000)


def _size(content: list[Any]) -> int:
    """About how many bytes a row takes in memory."""
    columns = content[2] if isinstance(content[2], list) else [content[0], content[2]]
    return _ROW_OVERHEAD_BYTES + sum(len(part) for part in columns if isinstance(part, str | bytes))
