"""Replay a file: what all sources that read recorded rows have in common.

Born here is a record's origin: its number is the row's rank in the order of the replay, which is the split's
position, too. So a restart goes on at the very record (exactly once). Rows are replayed in (event time, line)
order, those that are no records first; or, with `as_recorded`, in the order of their lines, where a row may
be late. The file may be larger than memory; it must not change while a flow that reads it goes on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import ClassVar, TypeVar

from geartrain.declarations.options import Count, FilePath
from geartrain.errors import SourceError
from geartrain.records.event_time import parse_time
from geartrain.source import Batch, Reject, Source
from geartrain_devices.file_order import TURN_ROWS, FileOrder, RowReader, RowReport, Stretch
from geartrain_devices.pace import speed_of

T = TypeVar("T")


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
        since_1970: promises that no row is of an earlier time. One that is becomes a dead letter.
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
    """The rows of one file that a device takes. Looks at all of them before the first read."""

    out_of_orderness_us = 0
    as_recorded = False
    halt: tuple[int, Path] | None = None
    """From this time on rows wait until the file is there, microseconds."""

    def __init__(
        self, source: str, name: str, rows: RowReader, speed: float, monotonic_s: Callable[[], float]
    ) -> None:
        """source: how the log calls it, `source quotes`; name: of the split."""
        self.name = name
        self._source, self._reader, self._speed, self._monotonic_s = source, rows, speed, monotonic_s
        self._order: FileOrder | None = None
        self._waiting: Iterator[Stretch] = iter(())
        self._next: Stretch | None = None
        self._at = -1
        self._anchor: tuple[int, float] | None = None

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` rows from rank `position` on, fewer where they are large or not yet due."""
        if self._order is None:
            self._order = await self._survey()
        if position != self._at:
            await self._seek(self._order, position)
        if self._next is None:
            return Batch([], [], [], position, ended=True)
        found, due = self._next, self._count_due(self._next, limit)
        if due < len(found):
            found, self._next = found.split(due)
        else:
            self._next = next(self._waiting, None)
        numbers, problem_numbers = found.numbers(position)
        rejects = [
            Reject(number, row.problem, row.raw, row.time, row.code)
            for number, row in zip(problem_numbers, found.problems, strict=True)
        ]
        self._at += len(found)
        return Batch(found.records, found.times, numbers, self._at, rejects, ended=self._next is None)

    async def close(self) -> None:
        """Drop what was sorted, and close the file."""
        self._close_file()
        if self._order is not None:
            self._order.close()
            self._order = None
            self._at = -1

    async def _survey(self) -> FileOrder:
        report = RowReport(self._source, self._reader.path)
        order = FileOrder(self._reader, report, as_recorded=self.as_recorded)
        try:
            await order.survey()
        except BaseException:
            order.close()
            raise
        return order

    async def _seek(self, order: FileOrder, position: int) -> None:
        self._close_file()
        self._waiting, rows = order.stretches(), 0
        while (found := next(self._waiting, None)) is not None and rows + len(found) <= position:
            if (rows + len(found)) // TURN_ROWS > rows // TURN_ROWS:
                await asyncio.sleep(0)  # the uplink and the signals get their turn
            rows += len(found)
        if found is None and rows < position:
            raise SourceError(
                f"file {self._reader.path} has {rows} rows for {self.name}, but {position} were read "
                "from it before: it must not change while a flow that reads it goes on"
            )
        self._next = found if found is None or rows == position else found.split(position - rows)[1]
        self._at = position

    def _close_file(self) -> None:
        if isinstance(self._waiting, Generator):
            self._waiting.close()
        self._waiting, self._next, self._at = iter(()), None, -1

    def _count_due(self, found: Stretch, limit: int) -> int:
        """How many of the next rows are due, `limit` at the most."""
        most = min(limit, len(found))
        if self._speed == math.inf and self.halt is None:
            return most
        for count, (time_us, is_record) in enumerate(islice(found.rows_in_order(), most)):
            if not self._is_due(time_us, is_record=is_record):
                return count
        return most

    def _is_due(self, time_us: int | None, *, is_record: bool) -> bool:
        if self.halt is not None and time_us is not None and time_us >= self.halt[0]:
            if not self.halt[1].exists():
                return False
            self.halt = self._anchor = None  # the pace begins again here
        if self._speed == math.inf or not is_record or time_us is None:
            return True
        now_s = self._monotonic_s()
        if self._anchor is None:
            self._anchor = (time_us, now_s)
        first_us, began_s = self._anchor
        return time_us - first_us <= (now_s - began_s) * self._speed * 1_000_000
