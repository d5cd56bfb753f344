"""Replay a CSV file in event-time order: a source for recorded data.

Order, positions and origins are those of `geartrain_devices.file_replay`; `geartrain_devices.csv_rows` says
what is a row. From top to bottom: the source, how a row becomes a record. Guarantees: a row that is no record
leaves as a dead letter with file, line, reason and code, and does not disturb the rows after it. Memory is
bounded by one row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.printable import shortened
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, format_time
from geartrain.schema import Field, Logical, Schema, derive, logicals
from geartrain.source import Split
from geartrain_devices.csv_columns import column_index
from geartrain_devices.csv_rows import PLAIN, CsvOptions, PlainRows, Row, read_blocks, read_header, read_rows
from geartrain_devices.csv_values import CsvValues, ParseAll
from geartrain_devices.file_order import CHUNK_BYTES_MAX, ProblemRow, RowChunk, RowReader
from geartrain_devices.file_replay import FileReplay
from geartrain_devices.no_record import BAD_TIME, BAD_VALUE, NoRecordError, code_of
from geartrain_devices.written_times import Times

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

WRONG_COLUMNS = "wrong_columns"
"""The code of a row that has more or fewer columns than the header."""
REFUSED = "refused"
"""The code of a row that the user's own check or constructor refuses."""
_VALUES_MAX = 10_000
"""Values of a partition column that are counted for a warning."""
_ROW_OVERHEAD_BYTES = 100
_APART_MAX = 32
"""So many rows, of which one is no plain record, are read one by one."""
_NAMED_MAX = 5
"""Values that a warning names."""


class CsvReplay(CsvOptions, FileReplay[T]):
    """Records of type `T` from the rows of a CSV file, plain or gzip, columns matched to fields by name.

    The options of `CsvOptions` say how the file is written. An empty text is None in an optional field. A bad
    row is a dead letter by itself, never an error of the file. Subclasses may read another form of time: see
    `moment`.

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
        """The event time that a text means.

        Args:
            text: of the time column; empty where there is no such column.

        Returns:
            Microseconds since 1970 UTC.

        Raises:
            ValueError: with a sentence; the row is then a dead letter.
        """
        return self.times.of_text(text)

    @cached_property
    def times(self) -> Times:
        """How texts of times are read."""
        return Times(f"file {self.path}", self)

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

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        self.check_csv(f"source {step}")

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file and column, or the option."""
        self.check_path(step)
        self.check_settings(step, out)
        if self.select and not self.partition_column:
            raise SourceError(
                f"source {step} has select but no partition_column: name the column to select by"
            )
        return [self.split(device, step, _Layout.of(self, out, f"source {step}"))]


class _Column(msgspec.Struct, frozen=True):
    """Where the text of a column stands in a row, and what is made of it, if anything."""

    index: int
    derive: Callable[[str], str] | None = None

    def text(self, fields: list[str]) -> str:
        """Of a row that is as wide as the header; raises `ValueError` with a sentence."""
        text = fields[self.index]
        return text if self.derive is None else self.derive(text)


class _Layout(msgspec.Struct, frozen=True):
    """How a row of one file becomes a record: where each field stands, and what makes it bad."""

    path: str
    options: CsvOptions
    width: int
    kind: Any
    schema: Schema
    logicals: tuple[Logical | None, ...]
    columns: tuple[_Column, ...]
    parsers: tuple[Callable[[str], Any], ...]
    column_parsers: tuple[ParseAll, ...]
    time_index: int | None
    time_column: str
    partition: _Column | None
    partition_column: str
    select: frozenset[str]
    others: bool
    check: Callable[[Any], str | None] | None
    """None where no record is refused."""
    moment: Callable[[str], int]
    times: Times | None
    """What reads texts as `moment` does, None where a subclass reads another form."""
    source: str
    warned: list[str] = msgspec.field(default_factory=list)
    """What the log has been told, once, though the file is read twice."""

    @staticmethod
    def of(
        source: CsvReplay[Any], kind: Any, name: str = "a source", options: CsvOptions | None = None
    ) -> _Layout:
        """options: how the file is written, where others than those of the source say so."""
        path, schema, kinds = source.path, derive(kind), logicals(kind)
        options = options or source
        header = read_header(path, options)
        partition, time_column = source.partition_column, source.time_column
        names = [field.name for field in schema.fields]
        derived = {
            column: source.derived(column)
            for column in (*names, partition)
            if column and column not in header
        }
        wanted = {
            column: found[0] if (found := derived.get(column)) else column for column in (*names, partition)
        }
        needed = [column for column in (*wanted.values(), time_column) if column]

        def place(column: str) -> _Column:
            found = derived.get(column)
            index = column_index(path, header, wanted[column], options, needed)
            return _Column(index, found[1] if found else None)

        has_own = type(source).moment is not CsvReplay.moment  # a subclass that reads another form
        times = Times(name, options)
        moment = lru_cache(maxsize=4_096)(times.of_text)  # days repeat
        values = CsvValues(options, moment)
        return _Layout(
            path,
            options,
            len(header),
            kind,
            schema,
            kinds,
            tuple(place(column) for column in names),
            tuple(values.parser(*pair) for pair in zip(schema.fields, kinds, strict=True)),
            tuple(values.column_parser(*pair) for pair in zip(schema.fields, kinds, strict=True)),
            column_index(path, header, time_column, options, needed) if time_column else None,
            time_column,
            place(partition) if partition else None,
            partition,
            frozenset(source.select),
            source.others,
            None if type(source).check is CsvReplay.check else source.check,
            source.moment if has_own else moment,
            None if has_own else times,
            name,
        )

    @property
    def paths(self) -> Sequence[str]:
        """The file."""
        return (self.path,)

    def chunks(self, sizes: Mapping[str, int] = {}) -> Iterator[RowChunk]:
        """The rows below the header that this device takes, as `RowReader` says."""
        missing, others = set(self.select), set[str]()
        chunk, size_bytes = RowChunk(), 0
        with closing(read_blocks(self.path, self.options, sizes.get(self.path))) as blocks:
            for block in blocks:
                if isinstance(block, PlainRows):
                    self._read_all(chunk, block, self._taken(block.fields, missing, others))
                    size_bytes = CHUNK_BYTES_MAX
                elif self._taken([block.fields], missing, others):
                    self._read_into(chunk, block)
                    size_bytes += _ROW_OVERHEAD_BYTES + block.size
                if size_bytes >= CHUNK_BYTES_MAX:
                    yield chunk
                    chunk, size_bytes = RowChunk(), 0
        yield chunk
        if missing:
            self._warn(sorted(missing), others)

    def _taken(self, rows: list[list[str]], missing: set[str], others: set[str]) -> Sequence[int]:
        """The indexes of the rows that this device takes; notes what there is of the partition column."""
        if not self.select:
            return range(len(rows))
        taken = []
        for index, part in enumerate(map(self._part, rows)):
            missing.discard(part)
            if part in self.select if part else self.others:
                taken.append(index)
            elif len(others) < _VALUES_MAX:
                others.add(part)
        return taken

    def _read_all(self, chunk: RowChunk, block: PlainRows, taken: Sequence[int]) -> None:
        """Read plain rows by the column, or one by one where one of them is no plain record."""
        rows = block.fields if len(taken) == len(block.fields) else [block.fields[index] for index in taken]
        lines = [block.line + index for index in taken]
        parts = [(0, len(rows))]
        alone: list[Row] = []
        while parts:
            start, end = parts.pop()
            found = self._columns_of(rows[start:end]) if start < end else None
            if found is not None:
                records, times = found
                chunk.records += records
                chunk.times += times
                chunk.lines += lines[start:end]
                chunk.contents += rows[start:end]
            elif end - start > _APART_MAX:
                middle = (start + end) // 2
                parts += [(middle, end), (start, middle)]
            else:
                alone = alone or block.rows()
                for index in taken[start:end]:
                    self._read_into(chunk, alone[index])

    def _columns_of(self, rows: list[list[str]]) -> tuple[list[Any], list[int]] | None:
        """The records of rows and their times, None where one of them has to be read by itself."""
        if set(map(len, rows)) != {self.width}:
            return None
        texts: list[Sequence[str]] = list(zip(*rows, strict=True))
        try:
            times = self._times_of([""] * len(rows) if self.time_index is None else texts[self.time_index])
            values = [
                parse(texts[at.index] if at.derive is None else list(map(at.derive, texts[at.index])))
                for parse, at in zip(self.column_parsers, self.columns, strict=True)
            ]
            for place, logical in enumerate(self.logicals):
                if logical is not None:
                    values[place] = [None if v is None else logical.lift(v) for v in values[place]]
            records = values[0] if self.schema.scalar else list(map(self.kind, *values))
            if self.check is not None and any(self.check(record) is not None for record in records):
                return None
        except USER_ERRORS:  # which row it is, and why, comes from reading it by itself
            return None
        return records, times

    def _times_of(self, texts: Sequence[str]) -> list[int]:
        found = None if self.times is None else self.times.alike_times(list(texts))
        return list(map(self._time, texts)) if found is None else found

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
        if not self.warned:
            self.warned.append(what)
            _LOG.warning("selects_nothing: %s: %s", self.source, what)

    def survey(self) -> Iterator[tuple[str, int | None]]:
        """Partition and event time of each row."""
        with closing(read_rows(self.path, self.options)) as rows:
            next(rows, None)
            for row in rows:
                chunk = RowChunk()
                self._read_into(chunk, row)
                yield self._part(row.fields), chunk.times[0] if chunk.times else None

    def _part(self, fields: list[str]) -> str:
        """The text of a row's partition, empty where it has none that can be read."""
        if self.partition is None:
            return ""
        text = fields[self.partition.index] if self.partition.index < len(fields) else ""
        try:
            return text if self.partition.derive is None else self.partition.derive(text)
        except ValueError:
            return ""

    def _read_into(self, chunk: RowChunk, row: Row) -> None:
        time_us = None
        try:
            fields = self._fields(row)
            time_us = self._time("" if self.time_index is None else fields[self.time_index])
            record = self.record(fields)
            problem, code = None if self.check is None else self.check(record), REFUSED
            if problem is None:
                chunk.add(record, time_us, row.line, fields)
                return
        except ValueError as error:
            problem, code = str(error), code_of(error)
        except USER_ERRORS as error:  # the user's own check or constructor: the row is the letter
            problem, code = describe(error), REFUSED
        where = f"{Path(self.path).name}, line {row.line}"
        chunk.problems.append(ProblemRow(row.line, f"{where}: {problem}", row.raw, time_us, code))

    def _fields(self, row: Row) -> list[str]:
        """As many texts as the header has names; raises `NoRecordError`."""
        if row.problem is not None:
            raise NoRecordError(row.problem, row.code)
        fields = row.fields
        if len(fields) == self.width:
            return fields
        advice = ""
        if len(fields) == self.width + 1 and not fields[-1]:
            advice = ": set trailing_delimiter = true where rows end in a delimiter"
        elif fields[0].lstrip().startswith("#"):
            advice = ': set comment = "#" where such lines are comments'
        elif len(fields) > self.width:
            advice = ": put a text that holds the delimiter in quotes"
        raise NoRecordError(
            f"it has {len(fields)} columns and the header {self.width}{advice}", WRONG_COLUMNS
        )

    def _time(self, text: str) -> int:
        try:
            time_us = self.moment(text)
        except ValueError as error:
            code = code_of(error, BAD_TIME)
            raise NoRecordError(f"column {self.time_column}: {error}", code) from None
        if EARLIEST_TIME <= time_us < END_OF_TIME:
            return time_us
        side, end = ("before", EARLIEST_TIME) if time_us < EARLIEST_TIME else ("not before", END_OF_TIME)
        problem = f"{shortened(text)} is {side} {format_time(end)}"
        raise NoRecordError(f"column {self.time_column}: {problem}", BAD_TIME)

    @staticmethod
    def _value(field: Field, parse: Callable[[str], Any], column: _Column, fields: list[str]) -> Any:
        """As a column holds it."""
        try:
            return parse(column.text(fields))
        except (ValueError, OverflowError) as error:
            raise NoRecordError(f"column {field.name}: {error}", code_of(error, BAD_VALUE)) from None

    def record(self, content: list[str]) -> Any:
        """The record of the texts of a row that is as wide as the header; raises `ValueError`."""
        values = [
            self._value(field, parse, column, content)
            for field, parse, column in zip(self.schema.fields, self.parsers, self.columns, strict=True)
        ]
        if any(self.logicals):
            pairs = zip(self.logicals, values, strict=True)
            values = [v if logical is None or v is None else logical.lift(v) for logical, v in pairs]
        return values[0] if self.schema.scalar else self.kind(*values)


def csv_reader(path: str, time_column: str, kind: Any, options: CsvOptions = PLAIN) -> RowReader:
    """The rows of one CSV file as records of the type `kind`.

    Args:
        path: the file.
        time_column: the column of event times.
        kind: the type of the records.
        options: how the file is written, checked by `check_csv`.

    Returns:
        What reads the rows.

    Raises:
        SourceError: naming the file and the column.
    """
    return _Layout.of(CsvReplay[Any](path=path, time_column=time_column), kind, options=options)
