"""A directory watched for files: every file that appears is read once, in the order of the names.

For devices that write files. A record's position is (rank of its file, rank of its row), so that a restart
goes on at the very record. A file is read once it is complete, as `geartrain_devices.complete_files` finds;
until then it holds those behind it. What is asked of the writer: names ascend, and files stay until the flow
has ended. Names that begin with `.` or end in `.tmp` or `.part` are passed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from geartrain.declarations.options import Count, FilePath
from geartrain.errors import SourceError
from geartrain.source import Batch, Reject, Source, Split
from geartrain_devices.complete_files import CompleteFiles
from geartrain_devices.csv_replay import csv_reader
from geartrain_devices.csv_rows import CsvOptions
from geartrain_devices.file_order import ProblemRow, RowReader, RowReport
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_lines import JsonFileOptions, JsonReader
from geartrain_devices.text_bytes import check_encoding
from geartrain_devices.text_files import reason_of

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

ROWS_MAX = 1 << 32
"""Rows of one file, at the most: a position is rank of the file * ROWS_MAX + rank of the row."""


class WatchedDirectory(Source[T]):
    """Base of the sources that read the files of a directory, rows in the order in which they stand.

    Args:
        path: the directory.
        pattern: the names that count, as in a shell.
        last: the name of a file that says that no more will come, empty for never.
        settle_ms: a file is complete when it was not written to for so long, and nobody has it open for
            writing.
        out_of_orderness_ms: how far the time of a row may lie below the highest before it and not be late.
        since_1970: promises that no row is of an earlier time. One that is becomes a dead letter.
    """

    replayable: ClassVar[bool] = True

    path: FilePath = ""
    pattern: str = "*"
    last: str = ""
    settle_ms: Count = 2_000
    out_of_orderness_ms: Count = 0
    since_1970: bool = False

    def reader(self, step: str, out: type[T]) -> Callable[[str], RowReader]:
        """How one file is read; subclasses define it."""
        raise TypeError(f"{type(self).__name__} must define reader(step, out)")

    def monotonic_s(self) -> float:
        """The seconds that `settle_ms` is measured by; a test may have its own."""
        return time.monotonic()

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        if not self.pattern or "/" in self.pattern:
            raise SourceError(f"source {step}: pattern = {self.pattern!r} must be of names, such as *.csv")
        self.reader(step, out)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the directory or the option."""
        if not self.path or not Path(self.path).is_dir():
            raise SourceError(f"source {step}: path = {self.path!r} is not a directory")
        self.check_settings(step, out)
        complete = CompleteFiles(f"source {step}", Path(self.path), self.settle_ms, self.monotonic_s)
        split = _DirectorySplit(f"source {step}", device, Path(self.path), self.pattern, self.last, complete)
        split.out_of_orderness_us = self.out_of_orderness_ms * 1_000
        split.reader = self.reader(step, out)
        return [split]


class JsonLinesDirectory(JsonFileOptions, WatchedDirectory[T]):
    """A directory of files of JSON lines.

    Args:
        path: the directory.
        pattern: the names that count, as in a shell.
        last: the name of a file that says that no more will come, empty for never.
        settle_ms: a file is complete when it was not written to for so long, and nobody has it open for
            writing.
        time: the path of the event time in a document.
        fields: paths by field, for those that are not found by their own name.
        encoding: how the text is written where no byte-order mark says so; empty for UTF-8.
        out_of_orderness_ms: how far the time of a line may lie below the highest before it and not be late.
        since_1970: promises that no line is of an earlier time. One that is becomes a dead letter.
    """

    pattern: str = "*.jsonl"
    time: str = "time"

    def reader(self, step: str, out: type[T]) -> Callable[[str], RowReader]:
        """One file as lines."""
        check_encoding(f"source {step}", self.encoding)
        fields = JsonFields(f"source {step}", out, self.time, self, self.fields)
        return lambda path: JsonReader(path, fields, self.encoding)


class CsvDirectory(CsvOptions, WatchedDirectory[T]):
    """A directory of CSV files, all written alike, as `CsvOptions` says.

    Args:
        path: the directory.
        pattern: the names that count, as in a shell.
        last: the name of a file that says that no more will come, empty for never.
        settle_ms: a file is complete when it was not written to for so long, and nobody has it open for
            writing.
        time_column: the column of event times: ISO 8601, UTC where it names no zone.
        out_of_orderness_ms: how far the time of a row may lie below the highest before it and not be late.
        since_1970: promises that no row is of an earlier time. One that is becomes a dead letter.
    """

    pattern: str = "*.csv"
    time_column: str = "time"

    def reader(self, step: str, out: type[T]) -> Callable[[str], RowReader]:
        """One file as rows."""
        self.check_csv(f"source {step}")
        return lambda path: csv_reader(path, self.time_column, out, self)


class _DirectorySplit:
    """The rows of all files, one after the other."""

    out_of_orderness_us = 0
    live_clock = False
    reader: Callable[[str], RowReader]

    def __init__(
        self, source: str, name: str, folder: Path, pattern: str, last: str, complete: CompleteFiles
    ) -> None:
        self._complete = complete
        self._source, self.name = source, name
        self._folder, self._pattern, self._last = folder, pattern, last
        self._files: list[str] = []
        self._rows: Iterator[tuple[int, Any] | ProblemRow] | None = None
        self._report: RowReport | None = None
        self._told = False
        self._at = -1

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` rows from `position` on; raises `SourceError` where the names go back."""
        if position != self._at:
            self._rows = None
        rank, row = divmod(position, ROWS_MAX)
        ended = self._list(rank, is_begun=row > 0 or self._rows is not None)
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        while rank < len(self._files) and len(values) + len(rejects) < limit:
            name = self._files[rank]
            if self._rows is None or self._report is None:
                if not self._complete.is_complete(name, is_last=ended):
                    break
                path = str(self._folder / name)
                self._complete.begin(name)
                self._report = RowReport(self._source, path)
                self._rows = islice(_rows_of(self.reader(path), self._report), row, None)
            found = next(self._rows, None)
            if found is None:
                self._report.end()
                self._complete.check_grown(name, is_all_read=True)
                rank, row, self._rows = rank + 1, 0, None
                continue
            number = rank * ROWS_MAX + row
            if isinstance(found, ProblemRow):
                rejects.append(Reject(number, found.problem, found.raw, found.time, found.code))
            else:
                times.append(found[0])
                values.append(found[1])
                numbers.append(number)
            row += 1
        self._at = rank * ROWS_MAX + row
        return Batch(values, times, numbers, self._at, rejects, ended=ended and rank == len(self._files))

    def _list(self, rank: int, *, is_begun: bool) -> bool:
        """Look what files there are; whether no more will come.

        is_begun: rows were read of the file of this rank, before which no other may appear.
        """
        names = self._names(self._pattern)
        if not names and not self._told and (others := self._names("*")):
            self._told = True
            _LOG.warning(
                "selects_nothing: %s: pattern = %r fits none of the %d names in directory %s, such as %r",
                *(self._source, self._pattern, len(others), self._folder, others[0]),
            )
        begun = self._files[: rank + is_begun]
        if names[: len(begun)] != begun:
            other = next((n for n in names if n not in begun), None)
            raise SourceError(
                f"directory {self._folder}: {begun[-1]} is being read, and now "
                + (f"{other} sorts before it" if other and other < begun[-1] else "a file before it is gone")
                + ": names must ascend, and files stay until the flow has ended"
            )
        if len(names) < rank:
            raise SourceError(
                f"directory {self._folder} holds {len(names)} files, but {rank} were read before: files must "
                "stay until the flow has ended"
            )
        self._files = names
        self._complete.look(names[rank + is_begun :])
        for name in names[:rank]:
            self._complete.check_grown(name, is_all_read=False)
        return bool(self._last) and (self._folder / self._last).exists()

    def _names(self, pattern: str) -> list[str]:
        """The files that fit a pattern and are whole, in the order in which they are read."""
        try:
            names = sorted(p.name for p in self._folder.glob(pattern) if p.is_file())
        except (OSError, ValueError) as error:
            raise SourceError(f"directory {self._folder} cannot be read: {reason_of(error)}") from None
        return [
            n
            for n in names
            if not n.startswith(".") and not n.endswith((".tmp", ".part")) and n != self._last
        ]

    async def close(self) -> None:
        """Nothing stays open but the file at hand, which goes with its reader."""
        self._rows = None


def _rows_of(reader: RowReader, report: RowReport) -> Iterator[tuple[int, Any] | ProblemRow]:
    """The rows of a file as they stand."""
    for chunk in reader.chunks():
        report.note(chunk)
        yield from chunk.rows()
