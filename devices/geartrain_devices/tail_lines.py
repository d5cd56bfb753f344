"""The lines of one open file of a tailed log, from a byte on.

Below `geartrain_devices.tail_files`. Guarantees: a line is given out once it has its end; one above the cap
is a dead letter with its first bytes. Before bytes are believed, the file is looked at again: one that was
cut short or filled anew meanwhile gives nothing, and says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.source import Reject
from geartrain_devices.line_fields import LineFields
from geartrain_devices.tail_places import (
    END_BYTES_MAX,
    START_BYTES_MAX,
    Mark,
    Places,
    Segment,
    mark_of,
    unknown_mark,
)

_CHUNK_BYTES, _READ_BYTES_MAX = 1 << 18, 1 << 20
_OFFSET_BITS = 38
_RANKS = 1 << 24


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
        self, where: str, file: int, path: Path, segment: Segment, offset: int, line_bytes_max: int
    ) -> None:
        """where: how sentences begin; file: open, and closed by `close`; path: where it was found."""
        self.path, self.segment, self.offset = path, segment, offset
        self.is_skipping = False
        self.is_cut = False
        """Whether the file is no longer what it was."""
        self._where, self._file, self._cap = where, file, line_bytes_max
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
            end = self._data.find(b"\n", self._index)
            if end < 0:
                if not self._fill():
                    break
                end = self._data.find(b"\n", self._index)
            if end >= 0:
                self._line(taken, lines, self._data[self._index : end], end + 1 - self._index)
            elif not self._pass_over(taken):
                break
        return self.offset != began

    def take_rest(self, taken: Taken, lines: LineFields) -> None:
        """Take the last line, which has no end and will get none."""
        if self._fill() and b"\n" not in (rest := self._data[self._index :]):
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

    def _before(self) -> bytes:
        return self._data[max(0, self._index - END_BYTES_MAX) : self._index]

    def _fill(self) -> bool:
        """Read on behind the offset; whether there is something, and the file is what it was."""
        start, before = self.segment.start, self._before()
        data = os.pread(self._file, max(_CHUNK_BYTES, self._cap + 2), self.offset)
        self.is_cut = (
            os.fstat(self._file).st_size < self.offset + len(data)
            or mark_of(self._file, start.end, start.size) != start
            or os.pread(self._file, len(before), self.offset - len(before)) != before
        )
        if self.is_cut:
            return False
        self._data, self._data_at = before + data, self.offset - len(before)
        if not self.is_skipping and data.startswith(b"\0"):
            # The hole that a writer without O_APPEND leaves where the file was cut short.
            self.offset += len(data) - len(data.lstrip(b"\0"))
        return self._index < len(self._data)

    def _pass_over(self, taken: Taken) -> bool:
        """Begin or go on to pass over a line that is too long; whether it is one."""
        waiting = len(self._data) - self._index
        if not self.is_skipping:
            if waiting <= self._cap + 1:  # its end may be a CR and a LF
                return False
            self._too_long(taken, self.position(), self._data[self._index :])
            self.is_skipping = True
        self.offset += waiting
        return True

    def _too_long(self, taken: Taken, number: int, raw: bytes) -> None:
        reason = f"{self._place(number)}: it is longer than {self._cap} bytes"
        taken.rejects.append(Reject(number, reason, raw[: self._cap]))

    def _place(self, number: int) -> str:
        return f"{self.path.name}, byte {parts_of(number)[1]}"

    def _line(self, taken: Taken, lines: LineFields, raw: bytes, size: int) -> None:
        """One line, `size` bytes with its end, or the rest of one that is passed over."""
        number = self.position()
        self.offset += size
        if self.is_skipping:
            self.is_skipping = False
            return
        raw = raw.removesuffix(b"\r")
        if not raw.strip():
            return
        if len(raw) > self._cap:
            self._too_long(taken, number, raw)
            return
        try:
            time_us, value = lines.read(raw)
        except USER_ERRORS as error:  # the user's own constructor, too: the line is the dead letter
            problem = str(error) if isinstance(error, ValueError) else describe(error)
            taken.rejects.append(Reject(number, f"{self._place(number)}: {problem}", raw))
            return
        taken.values.append(value)
        taken.times.append(time_us)
        taken.numbers.append(number)
