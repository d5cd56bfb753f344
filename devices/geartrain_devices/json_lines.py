"""Replay a file of JSON lines in event-time order: a source for recorded data.

Order, positions and origins are those of `geartrain_devices.file_replay`; a line that is no record leaves as
a dead letter with file, line and reason.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.source import Split
from geartrain_devices.file_replay import FileReplay, RecordedRow
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields
from geartrain_devices.text_files import not_utf8, open_text, said

T = TypeVar("T")


_BOM = b"\xef\xbb\xbf"
HEAD_DOCUMENTS = 100
"""By so many it is judged whether a file lacks a field."""
_NAMES_MAX = 20


class JsonLines(FileReplay[T]):
    """Records of type `T` from the lines of a file, one JSON document each; blank lines are passed over.

    Args:
        path: the file, gzip if it ends in `.gz`.
        time: the path of the event time in a document, such as `meta.at`: ISO 8601, or a number.
        time_unit: of a time that is a number: `s`, `ms` or `us` since 1970 UTC.
        fields: paths by field, for those that are not found by their own name.
        speed: event seconds for each second of the clock, or `"max"`.
        as_recorded: replay the lines in the order of the file, not of their times.
        out_of_orderness_ms: how far the time of a line may then lie below the highest before it and not be
            late.
        since_1970: promises that no line is of an earlier time. One that is becomes a dead letter.
    """

    time: str = "time"
    time_unit: str = "s"
    fields: dict[str, str] = field(default_factory=dict)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file or the option."""
        self.check_path(step)
        if not self.time:
            raise SourceError(f'source {step}: set time = "PATH", where each line has its event time')
        fields = JsonFields(f"source {step}", out, self.time, self.time_unit, self.fields)
        reader = JsonReader(self.path, fields)
        reader.check()  # a file that is not there is an error now, not at the first read
        return [self.split(device, step, reader)]


class JsonReader(msgspec.Struct, frozen=True):
    """The lines of one file as rows."""

    path: str
    fields: JsonFields

    def check(self) -> None:
        """Raise `SourceError` where the file cannot be read, or its first documents all lack what a record
        needs: each of its lines would be a dead letter.
        """
        head = [found for _, raw in islice(self._opened(), HEAD_DOCUMENTS) if (found := _document(raw))]
        if head and (lacking := self.fields.lacking(head)):
            names = dict.fromkeys(name for one in head for name in one)
            has = ", ".join(repr(name) for name in islice(names, _NAMES_MAX))
            raise SourceError(
                f"file {self.path} has no {lacking!r}, which a record needs, in its first documents; they "
                f"have {has}"
            )

    def rows(self) -> Iterator[RecordedRow | None]:
        """One of each line that is not blank."""
        for number, raw in self._opened():
            yield self._row(number, raw)

    def _opened(self) -> Iterator[tuple[int, bytes]]:
        try:
            with open_text(self.path) as file:
                yield from _lines(file)
        except (OSError, EOFError, zlib.error) as error:
            raise SourceError(f"file {self.path} cannot be read: {said(error)}") from None

    def _row(self, line: int, raw: bytes) -> RecordedRow:
        try:
            time_us, record = self.fields.read(raw)
            return RecordedRow(line, time_us, self.fields.columns(record))
        except ValueError as error:
            problem = str(error)
        except USER_ERRORS as error:  # the user's own constructor: the line is the dead letter
            problem = describe(error)
        where, undecodable = f"{Path(self.path).name}, line {line}", not_utf8(raw) is not None
        return RecordedRow(line, None, [], f"{where}: {problem}", raw, undecodable)

    def record(self, columns: list[object]) -> object:
        """The record of a row's columns."""
        return self.fields.record(columns)


def _document(raw: bytes) -> dict[str, Any]:
    """The document of a line, an empty one where it is none."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line that is not blank; one that is too long is cut behind the cap."""
    number = 0
    while raw := file.readline(DOCUMENT_BYTES_MAX + 2):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BOM)
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(DOCUMENT_BYTES_MAX)
        if raw.strip():
            yield number, raw.rstrip(b"\r\n")
