"""Replay a file of JSON lines in event-time order: a source for recorded data.

Order, positions and origins are those of `geartrain_devices.file_replay`; a line that is no record leaves as
a dead letter with file, line and reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.source import Split
from geartrain_devices.file_order import ProblemRow, RowChunk
from geartrain_devices.file_replay import FileReplay
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import NOT_A_RECORD
from geartrain_devices.text_bytes import UTF_8, NotTextError, TextCoding, check_encoding
from geartrain_devices.text_files import open_text

T = TypeVar("T")

HEAD_DOCUMENTS = 100
"""By so many it is judged whether a file lacks a field."""
_NAMES_MAX = 20
_APART_MAX = 32
"""So many lines, of which one is no plain record, are read one by one."""


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
    """A `JsonFields` or a `LineFields`."""
    encoding: str = ""

    def check(self) -> None:
        """Raise `SourceError` where the file cannot be read, or its first documents all lack what a record
        needs: each of its lines would be a dead letter.
        """
        with open_text(self.path, self.encoding) as file:
            lines = (raw for _, raw, _ in file.lines(DOCUMENT_BYTES_MAX) if not file.coding.is_blank(raw))
            documents = (_document(raw, file.coding) for raw in islice(lines, HEAD_DOCUMENTS))
            head = [found for found in documents if found]
        if head and (lacking := self.fields.lacking(head)):
            names = dict.fromkeys(name for one in head for name in one)
            has = ", ".join(repr(name) for name in islice(names, _NAMES_MAX))
            raise SourceError(
                f"file {self.path} has no {lacking!r}, which a record needs, in its first documents; they "
                f"have {has}"
            )

    @property
    def paths(self) -> Sequence[str]:
        """The file."""
        return (self.path,)

    def chunks(self, sizes: Mapping[str, int] = {}) -> Iterator[RowChunk]:
        """One row of each line that is not blank, as `RowReader` says."""
        with open_text(self.path, self.encoding, sizes.get(self.path)) as file:
            coding = file.coding
            for first, block in file.blocks(DOCUMENT_BYTES_MAX + 2 * coding.unit_bytes):
                chunk = RowChunk()
                self._read_all(chunk, *_documents(first, block, coding), coding)
                yield chunk

    def _read_all(self, chunk: RowChunk, lines: Sequence[int], raws: list[bytes], coding: TextCoding) -> None:
        """Take these lines; where one is no plain record, a part of them at a time."""
        contents = _as_utf8(raws, coding)
        found = None if contents is None else self.fields.read_all(contents)
        if found is not None and contents is not None:
            times, records = found
            chunk.records += records
            chunk.times += times
            chunk.lines += lines
            chunk.contents += contents
        elif len(raws) > _APART_MAX:
            half = len(raws) // 2
            self._read_all(chunk, lines[:half], raws[:half], coding)
            self._read_all(chunk, lines[half:], raws[half:], coding)
        else:
            for line, raw in zip(lines, raws, strict=True):
                self._read_one(chunk, line, raw, coding)

    def _read_one(self, chunk: RowChunk, line: int, raw: bytes, coding: TextCoding) -> None:
        code = NOT_A_RECORD
        try:
            content = coding.to_utf8(raw)
            time_us, record = self.fields.read(content)
            chunk.add(record, time_us, line, content)
            return
        except ValueError as error:
            unreadable = _text_error(raw, coding)
            problem = str(unreadable or error)
            code = str(getattr(unreadable or error, "code", code))
        except USER_ERRORS as error:  # the user's own constructor: the line is the dead letter
            problem = describe(error)
        where = f"{Path(self.path).name}, line {line}"
        chunk.problems.append(ProblemRow(line, f"{where}: {problem}", raw, code=code))

    def record(self, content: bytes) -> Any:
        """The record of a document of UTF-8, of which one was made before."""
        return self.fields.read(content)[1]


def _as_utf8(raws: list[bytes], coding: TextCoding) -> list[bytes] | None:
    """The same as UTF-8, None where one of them is no text."""
    try:
        return raws if coding.name == UTF_8.name else [coding.to_utf8(raw) for raw in raws]
    except NotTextError:
        return None


def _documents(first: int, block: list[bytes], coding: TextCoding) -> tuple[Sequence[int], list[bytes]]:
    """Numbers and bytes of the lines that are not blank, without their ends; first: number of the first."""
    if coding.unit_bytes == 1 and all(map(bytes.strip, block)):
        return range(first, first + len(block)), [raw.rstrip(b"\r\n") for raw in block]
    filled = [(line, raw) for line, raw in enumerate(block, first) if not coding.is_blank(raw)]
    return [line for line, _ in filled], [coding.without_end(raw) for _, raw in filled]


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
