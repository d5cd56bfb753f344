"""The rows of a file in the order of their replay, without a sort of what lies in order already.

Between what reads a file (`RowReader`) and what replays it (`geartrain_devices.file_replay`). A file is read
twice. The first pass finds the rows that are no records, and the strays: records whose time lies below that
of a record before them. Only these are sorted, on disk where they are many. The second pass merges them with
the records of the file, which ascend. So a file in order needs no sort and no temporary file.

Guarantees: rows that are no records come first, by line; then records by (time, line). As recorded, rows come
as they stand, in one pass. Memory is bounded by a chunk of rows. What is appended to a file meanwhile is not
read. Another change between the passes is a `SourceError`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from geartrain.errors import SourceError
from geartrain.records.event_time import START_OF_TIME
from geartrain_devices.external_sort import Entry, SortedRows
from geartrain_devices.no_record import NOT_A_RECORD
from geartrain_devices.text_bytes import TEXT_CODES

_LOG = logging.getLogger("geartrain.devices")

TURN_ROWS = 1_000
"""After so many rows that are not handed on, others get their turn of the loop."""
CHUNK_ROWS_MAX = 1_000
CHUNK_BYTES_MAX = 1 << 17
"""From so many bytes on, a chunk that is put together row by row is full."""
_STRETCH_BYTES_MAX = 1 << 20
_ROW_OVERHEAD_BYTES = 300


class ProblemRow(msgspec.Struct, frozen=True):
    """A row of a file that is no record.

    line: it begins on, from 1; problem: why, one sentence; raw: its bytes; time: its event time, if it has
    one, microseconds.
    """

    line: int
    problem: str
    raw: bytes
    time: int | None = None
    code: str = NOT_A_RECORD


class RowChunk(msgspec.Struct):
    """Rows that follow each other in a file: the records, field by field, and those that are none."""

    records: list[Any] = msgspec.field(default_factory=list)
    times: list[int] = msgspec.field(default_factory=list)
    """Event times of the records, microseconds."""
    lines: list[int] = msgspec.field(default_factory=list)
    """The lines of the records, ascending."""
    contents: list[Any] = msgspec.field(default_factory=list)
    """What each record is made of, as it can be kept on disk: bytes, or a list of texts."""
    problems: list[ProblemRow] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records) + len(self.problems)

    def add(self, record: Any, time_us: int, line: int, content: Any) -> None:
        """Take one record more."""
        self.records.append(record)
        self.times.append(time_us)
        self.lines.append(line)
        self.contents.append(content)

    def rows(self) -> Iterator[tuple[int, Any] | ProblemRow]:
        """The rows in the order of their lines: the time of a record and the record, or what is none."""
        problems = iter(self.problems)
        problem = next(problems, None)
        for line, time_us, record in zip(self.lines, self.times, self.records, strict=True):
            while problem is not None and problem.line < line:
                yield problem
                problem = next(problems, None)
            yield time_us, record
        if problem is not None:
            yield problem
            yield from problems


class RowReader(Protocol):
    """How the rows of one file, or of several, are read."""

    @property
    def path(self) -> str:
        """The file, for errors."""
        ...

    @property
    def paths(self) -> Sequence[str]:
        """All files that are read."""
        ...

    def chunks(self, sizes: Mapping[str, int] = {}) -> Iterator[RowChunk]:
        """The rows from the first on, but those of other devices.

        Args:
            sizes: how many bytes of a file are read, by its path; of a file that is not named, all.

        Raises:
            SourceError: for a file that cannot be read.
        """
        ...

    def record(self, content: Any) -> Any:
        """The record of one of a chunk's contents."""
        ...


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

    def note(self, chunk: RowChunk) -> None:
        """Take notice of some rows."""
        self._rows += len(chunk)
        self._records += len(chunk.records)
        for row in chunk.problems:
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


class Stretch(msgspec.Struct):
    """Rows that follow each other in a replay."""

    records: Sequence[Any]
    times: Sequence[int]
    """Event times of the records, microseconds."""
    places: Sequence[int]
    """Where the records stand among the rows of the stretch, from 0, ascending."""
    problems: Sequence[ProblemRow] = ()
    problem_places: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.records) + len(self.problems)

    def split(self, rows: int) -> tuple[Stretch, Stretch]:
        """Its first rows, and those behind them."""
        cut, cut_problems = bisect_left(self.places, rows), bisect_left(self.problem_places, rows)
        return (
            Stretch(
                self.records[:cut],
                self.times[:cut],
                self.places[:cut],
                self.problems[:cut_problems],
                self.problem_places[:cut_problems],
            ),
            Stretch(
                self.records[cut:],
                self.times[cut:],
                _shift_places(self.places[cut:], -rows),
                self.problems[cut_problems:],
                _shift_places(self.problem_places[cut_problems:], -rows),
            ),
        )

    def numbers(self, first: int) -> tuple[Sequence[int], Sequence[int]]:
        """The numbers of its records and of the other rows, where that of its first row is given."""
        return _shift_places(self.places, first), _shift_places(self.problem_places, first)

    def rows_in_order(self) -> Iterator[tuple[int | None, bool]]:
        """Of each row its event time and whether it is a record."""
        rows = [(place, time, True) for place, time in zip(self.places, self.times, strict=True)]
        rows += [(place, row.time, False) for place, row in self._placed_problems()]  # type: ignore[misc]
        rows.sort(key=lambda row: row[0])
        return ((time, is_record) for _, time, is_record in rows)

    def _placed_problems(self) -> Iterator[tuple[int, ProblemRow]]:
        return zip(self.problem_places, self.problems, strict=True)


def _shift_places(places: Sequence[int], by: int) -> Sequence[int]:
    if isinstance(places, range):
        return range(places.start + by, places.stop + by)
    return [place + by for place in places]


class _Ascent:
    """The highest event time so far, by which strays are told from records that ascend."""

    def __init__(self) -> None:
        self._top = START_OF_TIME

    def strays(self, times: Sequence[int]) -> list[int]:
        """The indexes of the next records that lie below one before them."""
        if not times:
            return []
        if times[0] >= self._top and sorted(times) == times:  # as fast as one look at each
            self._top = times[-1]
            return []
        found, top = [], self._top
        for index, time in enumerate(times):
            if time < top:
                found.append(index)
            else:
                top = time
        self._top = top
        return found


class _Stamp(NamedTuple):
    """What tells whether a file was changed."""

    identity: int
    size_bytes: int
    changed_ns: int
    """When it was written to, nanoseconds since 1970 UTC."""

    def begins_as(self, former: _Stamp) -> bool:
        """Whether it is the same file, to which something may have been appended."""
        return self == former or (self.identity == former.identity and self.size_bytes > former.size_bytes)


class FileOrder:
    """The rows of one replay; to be surveyed once, before its stretches are read."""

    def __init__(self, reader: RowReader, report: RowReport, *, as_recorded: bool) -> None:
        """as_recorded: whether rows come as they stand."""
        self._reader, self._report, self._as_recorded = reader, report, as_recorded
        self._rows = 0
        self._strays = 0
        self._sorted = SortedRows()
        """The rows that are no records, and the strays."""
        self._stamps: dict[str, _Stamp] = {}

    async def survey(self) -> None:
        """The first pass, where there has to be one."""
        self._stamps, ascent = self._stamp_files(), _Ascent()
        if self._as_recorded:
            return
        turn_rows = 0
        for chunk in self._read():
            self._report.note(chunk)
            self._rows += len(chunk)
            for row in chunk.problems:
                content = [row.problem, row.time, row.raw, row.code]
                size_bytes = len(row.problem) + len(row.raw)
                self._sorted.add(Entry(0, 0, row.line, content), _ROW_OVERHEAD_BYTES + size_bytes)
            for index in ascent.strays(chunk.times):
                self._strays += 1
                content = chunk.contents[index]
                self._sorted.add(Entry(1, chunk.times[index], chunk.lines[index], content), _size_of(content))
            turn_rows += len(chunk)
            if turn_rows >= TURN_ROWS:
                turn_rows = 0
                await asyncio.sleep(0)  # the uplink and the signals get their turn
        self._sorted.finish()
        self._report.end()

    def stretches(self) -> Iterator[Stretch]:
        """All rows in order; raises `SourceError`."""
        if self._as_recorded:
            return self._recorded()
        return self._merged() if self._strays else self._ascending()

    def close(self) -> None:
        """Give memory and disk back."""
        self._sorted.close()

    def _recorded(self) -> Iterator[Stretch]:
        for chunk in self._read():
            self._report.note(chunk)
            if not chunk.problems:
                if chunk.records:
                    yield Stretch(chunk.records, chunk.times, range(len(chunk)))
                continue
            problem_lines = [row.line for row in chunk.problems]
            yield Stretch(
                chunk.records,
                chunk.times,
                [index + bisect_left(problem_lines, line) for index, line in enumerate(chunk.lines)],
                chunk.problems,
                [index + bisect_left(chunk.lines, line) for index, line in enumerate(problem_lines)],
            )
        self._report.end()

    def _ascending(self) -> Iterator[Stretch]:
        last = None
        for stretch in _stretches_of(self._apart()):
            if last is not None:
                yield last
            last = stretch
        for chunk, _ in self._second_pass():
            problems = () if last is None else last.problems
            first, rows, last = len(problems), len(problems) + len(chunk.records), None
            if rows:
                yield Stretch(chunk.records, chunk.times, range(first, rows), problems, range(first))
        if last is not None:
            yield last

    def _merged(self) -> Iterator[Stretch]:
        return _stretches_of(heapq.merge(self._apart(), self._ascending_entries()))

    def _apart(self) -> Iterator[Entry]:
        """What was sorted: each content is a `ProblemRow` or a record, and about how many bytes it takes."""
        for kind, time_us, line, content in self._sorted.read():
            if kind:
                yield Entry(kind, time_us, line, (self._reader.record(content), _size_of(content)))
            else:
                problem, problem_time, raw, code = content
                row = ProblemRow(line, problem, raw, problem_time, code)
                yield Entry(kind, time_us, line, (row, len(raw)))

    def _ascending_entries(self) -> Iterator[Entry]:
        for chunk, strays in self._second_pass():
            left_out = set(strays)
            rows = zip(chunk.times, chunk.lines, chunk.records, chunk.contents, strict=True)
            for index, (time_us, line, record, content) in enumerate(rows):
                if index not in left_out:
                    yield Entry(1, time_us, line, (record, _size_of(content)))

    def _second_pass(self) -> Iterator[tuple[RowChunk, list[int]]]:
        """The chunks again, with the indexes of their strays."""
        ascent, rows, strays, problems = _Ascent(), 0, 0, 0
        for chunk in self._read():
            rows += len(chunk)
            found = ascent.strays(chunk.times)
            strays, problems = strays + len(found), problems + len(chunk.problems)
            if strays > self._strays or not self._are_unchanged():
                self._refuse_changed()
            yield chunk, found
        if (rows, strays + problems) != (self._rows, len(self._sorted)):
            self._refuse_changed()

    def _read(self) -> Iterator[RowChunk]:
        return self._reader.chunks({path: stamp.size_bytes for path, stamp in self._stamps.items()})

    def _refuse_changed(self) -> None:
        raise SourceError(
            f"file {self._reader.path} was changed while it was read: it must not change while a flow that "
            "reads it goes on"
        )

    def _stamp_files(self) -> dict[str, _Stamp]:
        """The stamp of each file that is there; where one is not, reading says so."""
        found = {}
        for path in self._reader.paths:
            with suppress(OSError):
                state = Path(path).stat()
                found[path] = _Stamp(state.st_ino, state.st_size, state.st_mtime_ns)
        return found

    def _are_unchanged(self) -> bool:
        """Whether all files are what they were, but for what was appended."""
        now = self._stamp_files()
        return now == self._stamps or (
            now.keys() == self._stamps.keys()
            and all(now[path].begins_as(stamp) for path, stamp in self._stamps.items())
        )


def _size_of(content: Any) -> int:
    """About how many bytes a row takes in memory."""
    size_bytes = len(content) if isinstance(content, bytes) else sum(map(len, content))
    return _ROW_OVERHEAD_BYTES + size_bytes


def _stretches_of(entries: Iterator[Entry]) -> Iterator[Stretch]:
    """Entries of `_apart` by so many, fewer where they are large."""
    problems: list[ProblemRow] = []
    records: list[Any] = []
    times: list[int] = []
    size_bytes = 0
    for kind, time_us, _, (row, row_bytes) in entries:
        size_bytes += row_bytes
        if kind:
            records.append(row)
            times.append(time_us)
        else:
            problems.append(row)
        if len(records) + len(problems) >= CHUNK_ROWS_MAX or size_bytes >= _STRETCH_BYTES_MAX:
            yield _stretch(problems, records, times)
            problems, records, times, size_bytes = [], [], [], 0
    if records or problems:
        yield _stretch(problems, records, times)


def _stretch(problems: list[ProblemRow], records: list[Any], times: list[int]) -> Stretch:
    """Rows that are no records, and records behind them."""
    rows = len(problems) + len(records)
    return Stretch(records, times, range(len(problems), rows), problems, range(len(problems)))
