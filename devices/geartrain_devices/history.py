"""History of a device from files: before what its source gives from now on, or alone, in a run apart.

A platform sets it, or the file of a device, as the option `history` of any source (`gear backfill`). Files
are read as file replays read them: by event time, and from the very record on after a crash. A row that is no
record is a dead letter.
Guarantees: the split's first record of what happens now comes behind the last one of the files.
Files and source share one split, so that one watermark says which records are late.
"""

from __future__ import annotations

import math
import re
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from geartrain.declarations.options import Options
from geartrain.errors import ConfigError, SourceError
from geartrain.source import Batch, Source, Split
from geartrain_devices.csv_replay import csv_reader
from geartrain_devices.csv_rows import TAB_WRITTEN, CsvOptions
from geartrain_devices.file_order import ProblemRow, RowChunk, RowReader
from geartrain_devices.file_replay import ReplaySplit
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_lines import JsonFileOptions, JsonReader
from geartrain_devices.line_fields import LineFields, LineOptions
from geartrain_devices.text_bytes import check_encoding

T = TypeVar("T")

CSV, JSON, LINES, PARQUET = "csv", "jsonl", "log", "parquet"
_FORMS = {"tsv": CSV, "ndjson": JSON, "txt": LINES, **{form: form for form in (CSV, JSON, LINES, PARQUET)}}
_OPTIONS: Mapping[str, type[Options]] = {CSV: CsvOptions, JSON: JsonFileOptions, LINES: LineOptions}
_ROTATED = re.compile(r"(?<=\.log)[.-][0-9][0-9.-]*\Z")
_PACKED = (".xz", ".bz2", ".zst", ".zip", ".7z", ".lz4", ".Z")
_HEAD_LINES = 100
"""Where so many lines are no records, none is expected to be one."""
LIVE = 1 << 40
"""Positions and numbers from here on are those of the source itself; those below are of the files."""


class History(Source[T]):
    """The rows of files, then the records of `original`; or the rows alone.

    Args:
        original: the source that the flow declares.
        files: paths of CSV files, of JSON lines or of lines of text, plain or gzip; all of one form, by name.
        time: the column, or the path in a document, of the event time.
        device: whose history it is; it stands in the names of splits.
        alone: nothing of `original` is read, and the source ends behind the last row.
        options: how the files are written: those of `CsvOptions`, `JsonFileOptions` or `LineOptions`.
    """

    original: Any
    files: list[str] = field(default_factory=list)
    time: str = "time"
    device: str = ""
    alone: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def _now(self) -> Source[Any]:
        found: Source[Any] = self.original
        return found

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Whether it ends by itself."""
        return self.alone or self._now.bounded

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """Whether all of it can be read again."""
        return self.alone or self._now.replayable

    @property
    def pausable(self) -> bool:  # type: ignore[override]
        """Whether what nobody reads is not lost."""
        return self.alone or self._now.pausable

    @property
    def idle_after_ms(self) -> int:  # type: ignore[override]
        """That of the source itself."""
        return self._now.idle_after_ms

    @property
    def exclusive(self) -> tuple[str, ...]:  # type: ignore[override]
        """That of the source itself, where it is read."""
        return () if self.alone else self._now.exclusive

    @property
    def each_its_own(self) -> tuple[str, ...]:  # type: ignore[override]
        """That of the source itself."""
        return self._now.each_its_own

    @property
    def keeps_order(self) -> bool:
        """What the source itself promises: files are read in the order of time."""
        return self._now.keeps_order

    @property
    def since_1970(self) -> bool:
        """What the source itself promises; a row of before is a dead letter."""
        return self._now.since_1970

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The splits of this device; raises `SourceError` naming a file that cannot be read."""
        past = self._past(device, step, out)
        if self.alone:
            return [past]
        first, *others = self._now.open(device, step, out)
        joined = _Joined(past, first)
        return [joined, *(_Later(one, joined) for one in others)]

    def check_files(self, step: str, out: type[T]) -> None:
        """Raise `SourceError` where a file cannot be records of this type at all."""
        for path in self.files:
            reader = self._reader(path, step, out)
            if isinstance(reader, JsonReader):
                reader.check()

    def read_options(self, where: str) -> dict[str, Any]:
        """The options as data, those that a person wrote as texts by their annotations.

        Raises `ConfigError`, which begins with `where`, for one that does not exist or fit.
        """
        found: dict[str, Any] = {}
        for path in self.files:
            written = _written(path, self.options, where)
            found |= {name: getattr(written, name) for name in self.options}
        return found

    def _past(self, device: str, step: str, out: type[T]) -> Split:
        """The rows of all files as one split."""
        name = self.device or device
        if not self.files:
            return _Nothing(name)
        readers = [self._reader(path, step, out) for path in self.files]
        return ReplaySplit(f"source {step}", name, _Files(readers), math.inf, clock.monotonic)

    def _reader(self, path: str, step: str, out: type[T]) -> RowReader:
        form, where = _form_to_read(path), f"source {step}.history.options"
        others = [one for one in self.files if form_of(one) != form]
        if others:
            raise SourceError(
                f"files {path} and {others[0]} are of two forms, and one history has one: write both alike"
            )
        try:
            written: Any = _written(path, self.options, where)
            if form == CSV:
                written.check_csv(where)
                return csv_reader(path, self.time, out, written)
            if form == LINES:
                if not (written.pattern or written.json):
                    raise SourceError(
                        f"file {path} holds lines of text: set options = {{pattern = ...}} with a group for "
                        "the time and each field, or json = true; or call it .csv where it is CSV"
                    )
                written = written.with_options({"time": self.time}, where)
                return _LineReader(path, LineFields(where, out, written), written.encoding)
            check_encoding(where, written.encoding)
            fields = JsonFields(f"source {step}", out, self.time, written, written.fields)
            return JsonReader(path, fields, written.encoding)
        except ConfigError as error:
            raise SourceError(str(error)) from None


class _LineReader(JsonReader, frozen=True):
    """The lines of a log as rows."""

    def check(self) -> None:
        """Raise `SourceError` where the file cannot be read, or none of its first lines is a record."""
        refused: list[ProblemRow] = []
        for chunk in self.chunks():
            first = chunk.lines[0] if chunk.lines else math.inf
            refused += [row for row in chunk.problems if row.line < first]
            if len(refused) >= _HEAD_LINES:
                break
            if chunk.lines:
                return
        if refused:
            raise SourceError(f"no line of file {self.path} is a record: {refused[0].problem}")


def form_of(path: str) -> str:
    """`csv`, `jsonl`, `log` or `parquet`, by the name of a file; "" for any other."""
    plain = _ROTATED.sub("", Path(path.removesuffix(".gz")).name)
    return _FORMS.get(Path(plain).suffix.removeprefix("."), "")


def _form_to_read(path: str) -> str:
    """The form of a file that can be read here; raises `SourceError` with what to do."""
    form = form_of(path)
    if form in _OPTIONS:
        return form
    if form == PARQUET:
        raise SourceError(
            f"file {path} is Parquet, which devices do not read: bring it in with gear backfill, or write "
            "its rows as .csv or .jsonl"
        )
    if path.endswith(_PACKED):
        raise SourceError(f"file {path} is packed in a form that is not read: pack it as .gz, or unpack it")
    raise SourceError(
        f"file {path} is of no form that is read: call it .csv or .tsv, .jsonl or .ndjson, or .log or .txt, "
        "as what it is, or so with .gz behind it"
    )


def _written(path: str, options: Mapping[str, Any], where: str) -> Options:
    """How a file is written: by options, and by its name; raises `ConfigError`."""
    plain: Options = _OPTIONS.get(form_of(path), CsvOptions)()
    if path.removesuffix(".gz").endswith(".tsv"):
        plain = CsvOptions(delimiter=TAB_WRITTEN)
    return plain.with_options(options, where)


class _Files:
    """The rows of several files, of which equal times stand in the order of the files."""

    def __init__(self, readers: Sequence[RowReader]) -> None:
        self._readers = readers
        self.path = ", ".join(Path(one.path).name for one in readers)

    @property
    def paths(self) -> Sequence[str]:
        """All of them."""
        return [path for reader in self._readers for path in reader.paths]

    def chunks(self, sizes: Mapping[str, int] = {}) -> Iterator[RowChunk]:
        """The rows, file by file."""
        for rank, reader in enumerate(self._readers):
            for chunk in reader.chunks(sizes):
                if rank:
                    chunk.lines = [line + rank * LIVE for line in chunk.lines]
                    chunk.problems = [replace(row, line=row.line + rank * LIVE) for row in chunk.problems]
                yield chunk

    def record(self, content: Any) -> Any:
        """The record of what it is made of: files of one form have one way to make it."""
        return self._readers[0].record(content)


class _Nothing:
    """No history: a source that a run apart has no records of."""

    out_of_orderness_us = 0
    live_clock = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def read(self, position: int, limit: int) -> Batch:
        """The end."""
        return Batch([], [], [], position, ended=True)

    async def close(self) -> None:
        """Nothing is open."""


class _AroundLive:
    """What stands before a split of the source hands on what is told to that split."""

    def __init__(self, live: Split) -> None:
        self._live: Any = live
        self.name, self.out_of_orderness_us = live.name, live.out_of_orderness_us
        self.live_clock = bool(getattr(live, "live_clock", False))

    def share(self, folder: Path, app: str) -> None:
        """As of the source itself."""
        if not hasattr(self._live, "share"):
            raise SourceError(f"split {self.name}: its source is exclusive, so that it must define share")
        self._live.share(folder, app)

    def name_client(self, client_id: str) -> None:
        """As of the source itself, where that is a client."""
        if hasattr(self._live, "name_client"):
            self._live.name_client(client_id)

    def take_notes(self, notes: Mapping[bytes, bytes]) -> None:
        """As of the source itself, where that notes something."""
        if hasattr(self._live, "take_notes"):
            self._live.take_notes(notes)


class _Joined(_AroundLive):
    """A split of files and then of the source; what has been read of the files stays so over restarts."""

    def __init__(self, past: Split, live: Split) -> None:
        super().__init__(live)
        self._past = past
        self.is_past = True
        """Whether rows of the files may be missing."""

    @property
    def is_behind(self) -> bool:
        """Its watermark does not follow a clock before the files have ended."""
        return self.is_past or bool(getattr(self._live, "is_behind", False))

    async def read(self, position: int, limit: int) -> Batch:
        """The rows of the files, then what the source gives."""
        self.is_past = position < LIVE
        if not self.is_past:
            found: Batch = await self._live.read(position - LIVE, limit)
            numbers = [number + LIVE for number in found.numbers]
            rejects = [replace(one, number=one.number + LIVE) for one in found.rejects]
            return replace(found, numbers=numbers, position=found.position + LIVE, rejects=rejects)
        found = await self._past.read(position, limit)
        self.is_past = not found.ended
        return replace(found, position=LIVE, ended=False) if found.ended else found

    async def close(self) -> None:
        """Both."""
        await self._past.close()
        await self._live.close()


class _Later(_AroundLive):
    """A further split of the source, which waits until the files have been read."""

    def __init__(self, live: Split, joined: _Joined) -> None:
        super().__init__(live)
        self._joined = joined

    @property
    def is_behind(self) -> bool:
        """Its watermark does not follow a clock before."""
        return self._joined.is_past or bool(getattr(self._live, "is_behind", False))

    async def read(self, position: int, limit: int) -> Batch:
        """What the source gives, once it is its turn."""
        if self._joined.is_past and position == 0:
            return Batch([], [], [], 0)
        found: Batch = await self._live.read(position, limit)
        return found

    async def close(self) -> None:
        """Release what the source took."""
        await self._live.close()
