"""Replay a file of JSON lines in event-time order: a source for recorded data.

Order, positions and origins are those of `geartrain_devices.file_replay`; a line that is no record leaves as
a dead letter with file, line and reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.source import Split
from geartrain_devices.file_replay import FileReplay, RecordedRow
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import NOT_A_RECORD
from geartrain_devices.text_bytes import NotTextError, TextCoding, check_encoding
from geartrain_devices.text_files import open_text

T = TypeVar("T")

HEAD_DOCUMENTS = 100
"""By so many it is judged whether a file lacks a field."""
_NAMES_MAX = 20


class JsonFileOptions(ValueOptions):
    """How files of JSON lines are written: the options of every source that reads them.

    Args:
        fields: paths by field, for those that are not found by their own name.
        encoding: how the text is written where no byte-order mark says so; empty for UTF-8.
    """

    fields: dict[str, str] = field(default_factory=dict)
    encoding: str = ""


class JsonLines(JsonFileOptions, FileReplay[T]):
    """Records of type `T` from the lines of a file, one JSON document each; blank lines are passed over.

    How its times and numbers are written, the options of `ValueOptions` say.

    Args:
        path: the file, gzip if it ends in `.gz`.
        time: the path of the event time in a document, such as `meta.at`: ISO 8601, or a number.
        fields: paths by field, for those that are not found by their own name.
        encoding: how the text is written where no byte-order mark says so; empty for UTF-8.
        speed: event seconds for each second of the clock, or `"max"`.
        as_recorded: replay the lines in the order of the file, not of their times.
        out_of_orderness_ms: how far the time of a line may then lie below the highest before it and not be
            late.
        since_1970: promises that no line is of an earlier time. One that is becomes a dead letter.
    """

    time: str = "time"

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        check_encoding(f"source {step}", self.encoding)
        JsonFields(f"source {step}", out, self.time, self, self.fields)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file or the option."""
        self.check_path(step)
        if not self.time:
            raise SourceError(f'source {step}: set time = "PATH", where each line has its event time')
        self.check_settings(step, out)
        fields = JsonFields(f"source {step}", out, self.time, self, self.fields)
        reader = JsonReader(self.path, fields, self.encoding)
        reader.check()  # a file that is not there is an error now, not at the first read
        return [self.split(device, step, reader)]


class JsonReader(msgspec.Struct, frozen=True):
    """The lines of one file as rows."""

    path: str
    fields: Any
    """A `JsonFields`, or what has its methods `columns` and `record`."""
    encoding: str = ""

    def check(self) -> None:
        """Raise `SourceError` where the file cannot be read, or its first documents all lack what a record
        needs: each of its lines would be a dead letter.
        """
        lines = islice(self._lines(), HEAD_DOCUMENTS)
        head = [found for _, raw, coding in lines if (found := _document(raw, coding))]
        if head and (lacking := self.fields.lacking(head)):
            names = dict.fromkeys(name for one in head for name in one)
            has = ", ".join(repr(name) for name in islice(names, _NAMES_MAX))
            raise SourceError(
                f"file {self.path} has no {lacking!r}, which a record needs, in its first documents; they "
                f"have {has}"
            )

    def rows(self) -> Iterator[RecordedRow | None]:
        """One of each line that is not blank."""
        for number, raw, coding in self._lines():
            yield self._row(number, raw, coding)

    def _lines(self) -> Iterator[tuple[int, bytes, TextCoding]]:
        """(number from 1, bytes without its end, coding) of each line that is not blank; one that is too long
        is cut behind the cap.
        """
        with open_text(self.path, self.encoding) as file:
            coding = file.coding
            for number, raw, _ in file.lines(DOCUMENT_BYTES_MAX + 2 * coding.unit_bytes):
                if not coding.is_blank(raw):
                    yield number, coding.without_end(raw), coding

    def _row(self, line: int, raw: bytes, coding: TextCoding) -> RecordedRow:
        code = NOT_A_RECORD
        try:
            time_us, record = self._read(raw, coding)
            return RecordedRow(line, time_us, self.fields.columns(record))
        except ValueError as error:
            unreadable = _text_error(raw, coding)
            problem = str(unreadable or error)
            code = str(getattr(unreadable or error, "code", code))
        except USER_ERRORS as error:  # the user's own constructor: the line is the dead letter
            problem = describe(error)
        where = f"{Path(self.path).name}, line {line}"
        return RecordedRow(line, None, [], f"{where}: {problem}", raw, code)

    def _read(self, raw: bytes, coding: TextCoding) -> tuple[int | None, Any]:
        """(event time, record) of a line; raises `ValueError`."""
        found: tuple[int | None, Any] = self.fields.read(coding.to_utf8(raw))
        return found

    def record(self, columns: list[object]) -> object:
        """The record of a row's columns."""
        return self.fields.record(columns)


def _document(raw: bytes, coding: TextCoding) -> dict[str, Any]:
    """The document of a line, an empty one where it is none."""
    try:
        found = msgspec.json.decode(coding.to_utf8(raw))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text_error(raw: bytes, coding: TextCoding) -> NotTextError | None:
    try:
        coding.decode(raw)
    except NotTextError as error:
        return error
    return None
