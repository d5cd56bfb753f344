"""The lines of one open file of a tailed log, from a byte on.

Below `geartrain_devices.tail_files`. Guarantees: a line is given out once it has its end. One above the cap
is a dead letter with its first bytes; where it ends another one counts those that were passed over. The first
bytes of a file decide how it is written. Before bytes are believed, the file is looked at again: one that was
cut short or filled anew meanwhile gives nothing, and says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.source import Reject
from geartrain_devices.line_fields import LineFields
from geartrain_devices.no_record import refusal_of
from geartrain_devices.tail_places import (
    END_BYTES_MAX,
    START_BYTES_MAX,
    Mark,
    Places,
    Segment,
    mark_of,
    unknown_mark,
)
from geartrain_devices.text_bytes import (
    NOT_ENCODED,
    START_BYTES,
    UTF_8,
    NotTextError,
    TextCoding,
    coding_of,
    may_begin_mark,
)

_CHUNK_BYTES, _READ_BYTES_MAX = 1 << 18, 1 << 20
_OFFSET_BITS = 38
_RANKS = 1 << 24
_LINE_END_BYTES_MAX = 8
"""Bytes of a carriage return and a line feed, in any encoding."""


class Taken(msgspec.Struct):
    """What one read gives."""

    values: list[Any] = msgspec.field(default_factory=list)
    times: list[int] = msgspec.field(default_factory=list)
    numbers: list[int] = msgspec.field(default_factory=list)
    rejects: list[Reject] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values) + len(self.rejects)


def parts_of(position: int) -> tuple[int, int, bool]:
    """(rank, byte, whether the rest of a line is passed over) of a position."""
    place = position >> 1
    return place >> _OFFSET_BITS, place & (1 << _OFFSET_BITS) - 1, bool(position & 1)


class OpenSegment:
    """One segment, read on from `offset`."""

    def __init__(
        self,
        where: str,
        file: int,
        path: Path,
        segment: Segment,
        offset: int,
        line_bytes_max: int,
        encoding: str = "",
    ) -> None:
        """where: how sentences begin; file: open, and closed by `close`; path: where it was found; encoding:
        how it is written where it has no byte-order mark.
        """
        self.path, self.segment, self.offset = path, segment, offset
        self.is_skipping = False
        self.is_cut = False
        """Whether the file is no longer what it was."""
        self._where, self._file, self._cap, self._encoding = where, file, line_bytes_max, encoding
        self._coding: TextCoding | None = None
        self._long_from: int | None = None
        self._data, self._data_at = b"", offset

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def is_deleted(self) -> bool:
        """Whether no name leads to the file any more."""
        return os.fstat(self._file).st_nlink == 0

    def position(self) -> int:
        """The split's position; raises `SourceError` beyond what one holds."""
        if self.offset >> _OFFSET_BITS or self.segment.rank >= _RANKS:
            raise SourceError(f"{self._where}: file {self.path} is too large, or was rotated too often")
        return (self.segment.rank << _OFFSET_BITS | self.offset) << 1 | self.is_skipping

    def take(self, taken: Taken, lines: LineFields, limit: int) -> bool:
        """Take up to `limit` whole lines; whether the offset moved."""
        began = self.offset
        while len(taken) < limit and self.offset - began < _READ_BYTES_MAX:
            end = self._line_end()
            if end < 0:
                if not self._fill():
                    break
                end = self._line_end()
            if end >= 0:
                size = end + len(self._known_coding.line_feed) - self._index
                self._line(taken, lines, self._data[self._index : end], size)
            elif not self._pass_over(taken):
                break
        return self.offset != began

    def take_rest(self, taken: Taken, lines: LineFields) -> None:
        """Take the last line, which has no end and will get none."""
        if self._fill() and self._line_end() < 0:
            rest = self._data[self._index :]
            self._line(taken, lines, rest, len(rest))

    def end_mark(self) -> Mark:
        """The mark of the bytes before the offset."""
        size = min(self.offset, END_BYTES_MAX)
        return mark_of(self._file, self.offset, size) or unknown_mark(self.offset)

    def is_like(self, path: Path) -> bool:
        """Whether the bytes before the offset stand in another file, too."""
        before = self._before()
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), len(before), self.offset - len(before)) == before
        except OSError:
            return False

    def know_better(self, places: Places) -> None:
        """Make the first bytes by which the file is known more, durably, once there are more."""
        known, size = self.segment.start, min(os.fstat(self._file).st_size, START_BYTES_MAX)
        if known.size >= START_BYTES_MAX or size < min(4 * known.size, START_BYTES_MAX):
            return
        start = mark_of(self._file, size, size)
        if start is None or mark_of(self._file, known.end, known.size) != known:
            return  # it was cut short: the next read says so
        self.segment = replace(self.segment, start=start)
        others = [one for one in places.segments or () if one.rank != self.segment.rank]
        places.keep([*others, self.segment])

    @property
    def _index(self) -> int:
        return self.offset - self._data_at

    @property
    def _known_coding(self) -> TextCoding:
        return self._coding or UTF_8

    def _line_end(self) -> int:
        """The index of the next line's end, -1 where it has not come."""
        return self._known_coding.find(self._known_coding.line_feed, self._data, self._index)

    def _before(self) -> bytes:
        return self._data[max(0, self._index - END_BYTES_MAX) : self._index]

    def _fill(self) -> bool:
        """Read on behind the offset; whether there is something, and the file is what it was."""
        start, before = self.segment.start, self._before()
        data = os.pread(self._file, max(_CHUNK_BYTES, self._cap + _LINE_END_BYTES_MAX), self.offset)
        self.is_cut = (
            os.fstat(self._file).st_size < self.offset + len(data)
            or mark_of(self._file, start.end, start.size) != start
            or os.pread(self._file, len(before), self.offset - len(before)) != before
        )
        if self.is_cut or not (data and self._decide_coding(data)):
            return False
        self._data, self._data_at = before + data, self.offset - len(before)
        if not self.is_skipping and data.startswith(b"\0"):
            # The hole that a writer without O_APPEND leaves where the file was cut short.
            hole = len(data) - len(data.lstrip(b"\0"))
            self.offset += hole - hole % self._known_coding.unit_bytes
        return self._index < len(self._data)

    def _decide_coding(self, data: bytes) -> bool:
        """Decide how the file is written by its first bytes; False where too few are there yet. Raises
        `SourceError` where they show another encoding than UTF-8 and nothing names it.
        """
        if self._coding is not None:
            return True
        start = os.pread(self._file, START_BYTES, 0)
        if may_begin_mark(start):
            return False
        if not start.strip(b"\0"):  # a hole, and what is behind it
            start = data.lstrip(b"\0")[:START_BYTES]
        try:
            self._coding = coding_of(start, self._encoding)
        except NotTextError as error:
            if error.seems or error.code == NOT_ENCODED:
                raise SourceError(f"{self._where}: file {self.path}: {error}") from None
            self._coding = UTF_8  # of a line that holds a NUL its dead letter says so
        self.offset += -self.offset % self._coding.unit_bytes  # as a release without encodings has left it
        return True

    def _pass_over(self, taken: Taken) -> bool:
        """Begin or go on to pass over a line that is too long; whether it is one."""
        waiting = len(self._data) - self._index
        waiting -= waiting % self._known_coding.unit_bytes
        if not self.is_skipping:
            number = self.position()
            if waiting < self._cap + _LINE_END_BYTES_MAX:
                return False
            raw = self._data[self._index : self._index + self._cap]
            self._too_long(taken, number, raw, f"it is longer than line_bytes_max = {self._cap} bytes")
            self.is_skipping, self._long_from = True, self.offset
        self.offset += waiting
        return waiting > 0

    def _too_long(self, taken: Taken, number: int, raw: bytes, reason: str) -> None:
        taken.rejects.append(Reject(number, f"{self._place(number)}: {reason}", raw, code="too_long"))

    def _long_begin(self, end: int) -> int:
        """Where the line begins that is passed over, by the bytes before `end` after a restart."""
        if self._long_from is not None:
            return self._long_from
        feed = self._known_coding.line_feed
        while end > 0:
            at = max(0, end - _CHUNK_BYTES)
            data = os.pread(self._file, end - at, at)
            found = data.rfind(feed)
            while found > 0 and found % len(feed):
                found = data.rfind(feed, 0, found + len(feed) - 1)
            if found >= 0:
                return at + found + len(feed)
            end = at
        return 0

    def _place(self, number: int) -> str:
        return f"{self.path.name}, byte {parts_of(number)[1]}"

    def _line(self, taken: Taken, lines: LineFields, raw: bytes, size: int) -> None:
        """One line, `size` bytes with its end, or the rest of one that is passed over."""
        number, coding = self.position(), self._known_coding
        self.offset += size
        if self.is_skipping:
            self.is_skipping = False
            begin = self._long_begin(self.offset - size)
            number += len(raw) << 1  # of the line's end, wherever reads have ended
            passed = parts_of(number)[1] - begin - self._cap
            reason = f"the line from byte {begin} on ends here; {passed} bytes of it were passed over"
            self._too_long(taken, number, b"", reason)
            self._long_from = None
            return
        raw = coding.without_end(raw).removeprefix(coding.own_mark)  # who opens a log again may write one
        if coding.is_blank(raw):
            return
        if len(raw) > self._cap:
            reason = f"it has {len(raw)} bytes, above line_bytes_max = {self._cap}; the first ones are kept"
            self._too_long(taken, number, raw[: self._cap], reason)
            return
        try:
            time_us, value = lines.read(raw, coding)
        except USER_ERRORS as error:  # the user's own constructor, too: the line is the dead letter
            code, problem = refusal_of(error)
            taken.rejects.append(Reject(number, f"{self._place(number)}: {problem}", raw, code=code))
            return
        taken.values.append(value)
        taken.times.append(time_us)
        taken.numbers.append(number)
