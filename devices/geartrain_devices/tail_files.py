"""Tail a log file through its rotations: each line once, from the very byte on after a restart.

For programs that log to files. A position is the rank of a segment and a byte of its file; which file that
is, `geartrain_devices.tail_places` keeps. Guarantees: while a rotated file is there
and not packed, no line of it is lost and none comes twice. That holds through kill -9, and for files that are
renamed, copied and cut short, or deleted.
Where lines can be lost, a dead letter says so. A line that is no record is one, too.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from geartrain.declarations.options import Count, FilePath
from geartrain.errors import SourceError
from geartrain.source import Batch, Reject, Source, Split
from geartrain_devices.line_fields import LineFields, LineOptions
from geartrain_devices.tail_lines import OpenSegment, Taken, parts_of
from geartrain_devices.tail_places import (
    Found,
    Mark,
    Places,
    Segment,
    end_mark,
    known,
    look,
    mark_of,
    start_of,
    unknown_mark,
)

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_AGAIN_S = 1.0
"""How often files that were left are looked at, whether somebody still writes to them."""

LineBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
"""The cap of a line, bytes."""


class TailFiles(LineOptions, Source[T]):
    """Records of type `T` from the lines of a log file, and of the files that it is rotated to.

    Args:
        path: the file that is written to. It need not be there yet.
        keep: a folder of the source's own, where it notes which files it has read; it outlives the process.
        rotated: the pattern of names in the same folder that the file gets; empty for `NAME.*` and `NAME-*`.
            Packed ones, such as `.gz`, are passed over.
        begin: where a first life begins: at the `start` of the file, at its `end`, or with the `oldest` of
            the rotated files.
        pattern: a regular expression of a whole line; its named groups are fields. Without one a line is the
            field `line`.
        json: each line is a JSON document.
        time: the group, or the path, of the event time; empty where the time of reading is meant.
        fields: groups or paths by field, for those that are not found by their own name.
        encoding: how the log is written where no byte-order mark says so, such as `utf-16-le` or `cp1252`;
            empty for UTF-8.
        line_bytes_max: bytes of a line; a longer one is a dead letter with so many of its bytes.
        rotate_wait_s: how long nothing may come in a file that was renamed until the next is read, seconds.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = True
    since_1970 = True

    path: FilePath = ""
    keep: FilePath = ""
    rotated: str = ""
    begin: Literal["start", "end", "oldest"] = "start"
    line_bytes_max: LineBytes = 65_536
    rotate_wait_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 5.0
    out_of_orderness_ms: Count = 0

    def monotonic_s(self) -> float:
        """The seconds that `rotate_wait_s` is measured by; a test may have its own."""
        return time.monotonic()

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        where = f"source {step}"
        if "/" in self.rotated:
            raise SourceError(f"{where}: rotated = {self.rotated!r} must be of names, such as app.log.*")
        if self.pattern or self.json:  # a pattern may be set on the device
            LineFields(where, out, self)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the file or the option."""
        where = f"source {step}"
        if not self.path:
            raise SourceError(f'{where} has no file: set path = "FILE.log" under [sources.{step}]')
        if not self.keep:
            raise SourceError(
                f'{where}: set keep = "FOLDER" under [sources.{step}]: a folder of its own, '
                "where it notes which files it has read"
            )
        log = Path(self.path)
        if not log.parent.is_dir():
            raise SourceError(f"{where}: path = {self.path!r}: there is no folder {log.parent}")
        self.check_settings(step, out)
        lines = LineFields(where, out, self)
        split = TailSplit(device, step, log, Path(self.keep), lines, self.monotonic_s)
        split.rotated = self.rotated or f"{_literal(log.name)}[.-]*"
        split.begin, split.line_bytes_max, split.encoding = self.begin, self.line_bytes_max, self.encoding
        split.rotate_wait_s, split.out_of_orderness_us = self.rotate_wait_s, self.out_of_orderness_ms * 1_000
        return [split]


class TailSplit:
    """The lines of one log."""

    live_clock = True
    out_of_orderness_us = 0
    rotated = "*"
    begin = "start"
    line_bytes_max = 65_536
    encoding = ""
    rotate_wait_s = 5.0

    def __init__(
        self,
        device: str,
        step: str,
        log: Path,
        keep: Path,
        lines: LineFields,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.name, self._label, self._where = device, f"{device}/{step}", f"source {step}"
        self._log, self._keep, self._lines = log, keep, lines
        self._monotonic_s = monotonic_s
        self._places: Places | None = None
        self._at = -1
        self._rank = -1
        self._open: OpenSegment | None = None
        self._lost: list[str] = []
        self._quiet_since_s: float | None = None
        self._looked_s = -_AGAIN_S
        self._is_skipping = False
        """Whether the file that was cut short was left within a line that is passed over."""

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` lines from `position` on; raises `SourceError`."""
        if self._places is None:
            self._places = Places(self._where, self._label, self._keep, self._log, self.rotated)
        if position != self._at:
            self._seek(self._places, position)
        taken = Taken()
        if self._open is None:
            self._next(self._places, taken)
        if self._open is not None and not taken.rejects:
            self._read(self._places, self._open, taken, limit)
        self._at = position if self._open is None else self._open.position()
        return Batch(taken.values, taken.times, taken.numbers, self._at, taken.rejects)

    def _read(self, places: Places, opened: OpenSegment, taken: Taken, limit: int) -> None:
        if opened.take(taken, self._lines, limit):
            self._quiet_since_s = None
            opened.know_better(places)
        elif opened.is_cut:
            self._go_to_copy(places, opened)
        else:
            self._perhaps_leave(places, opened, taken)

    async def close(self) -> None:
        """Close the file and let others have the folder."""
        self._close()
        if self._places is not None:
            self._places.close()
            self._places = None
        self._at = -1

    def _seek(self, places: Places, position: int) -> None:
        """Stand at a position again, or where a first life begins."""
        self._close()
        self._lost, self._quiet_since_s = [], None
        rank, offset, is_skipping = parts_of(position)
        ranks = [one.rank for one in places.segments or ()]
        if places.segments is None or (not position and ranks and 0 not in ranks and max(ranks) > 0):
            self._rank = rank if position else -1
            if position:
                self._lose(f"{self._keep} does not say what was read before; begin = {self.begin} once more")
            self._start_afresh(places)
            return
        segment = next((one for one in places.segments if one.rank == rank), None)
        before = [one for one in places.segments if one.rank < rank]
        if segment is None and position:
            raise SourceError(
                f"{self._where}: {self._keep} does not know the file that was read before: it was made for "
                "another state folder, so set another folder as keep"
            )
        places.segments = before
        self._rank = rank if segment is not None else -1
        if segment is None:
            return  # nothing was there yet
        offset = max(offset, segment.begin)
        found = _again(places.files(), segment, offset)
        if found is None:
            self._lose(f"a file that was read up to byte {offset} is gone or packed")
            places.segments = [*before, replace(segment, left=unknown_mark(offset))]
            return
        self._enter(places, found, replace(segment, inode=found.inode, left=None), offset)
        if self._open is not None:
            self._open.is_skipping = is_skipping

    def _start_afresh(self, places: Places) -> None:
        """Note all that is there and is not to be read."""
        files = places.files()
        passed = [] if self.begin == "oldest" else [one for one in files if one.path != self._log]
        if self.begin == "end":
            passed = files
        segments = []
        for found in passed:
            start = start_of(found.path)
            segments.append(Segment(-1, found.inode, start, 0, end_mark(found.path, found.size)))
        places.keep(segments)

    def _next(self, places: Places, taken: Taken) -> None:
        """Go on with the oldest file of which there are unread bytes."""
        now_s = self._monotonic_s()
        segments = places.segments or []
        files = places.files()
        for found, segment in zip(files, known(files, segments), strict=True):
            begin = 0 if segment is None or segment.left is None else segment.left.end
            if found.size > begin:
                start = start_of(found.path)
                self._rank += 1
                if self._enter(places, found, Segment(self._rank, found.inode, start, begin), begin):
                    if self._open is not None:
                        self._open.is_skipping = self._is_skipping and begin > 0
                    self._is_skipping = False
                    self._tell(taken)
                else:
                    self._rank -= 1
                break
        self._looked_s = now_s

    def _enter(self, places: Places, found: Found, segment: Segment, offset: int) -> bool:
        """Open a file and make its segment the last, durably, before a line of it is given out."""
        try:
            file = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # it was renamed in between
        except OSError as error:
            raise SourceError(f"{self._where}: {found.path} cannot be read: {error.strerror}") from None
        if (
            os.fstat(file).st_ino != found.inode
            or mark_of(file, segment.start.end, segment.start.size) is None
        ):
            os.close(file)
            return False
        places.keep([*(places.segments or ()), segment])
        self._open = OpenSegment(
            self._where, file, found.path, segment, offset, self.line_bytes_max, self.encoding
        )
        self._quiet_since_s = None
        return True

    def _perhaps_leave(self, places: Places, opened: OpenSegment, taken: Taken) -> None:
        """At the end of a file: leave it where it was renamed and nobody writes to it any more, or where
        somebody writes to a file that was left.
        """
        now_s, live = self._monotonic_s(), look(self._log)
        if live is not None and live.inode == opened.segment.inode:
            self._quiet_since_s = None
            if now_s - self._looked_s >= _AGAIN_S:
                self._looked_s = now_s
                if self._grown(places):
                    self._leave(places, opened, opened.end_mark())
            return
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        if now_s - self._quiet_since_s >= self.rotate_wait_s and (live is not None or not opened.is_deleted):
            opened.take_rest(taken, self._lines)
            if not len(taken):
                self._leave(places, opened, opened.end_mark())

    def _grown(self, places: Places) -> bool:
        """Whether somebody has written to a file that was left."""
        files = [one for one in places.files() if one.path != self._log]
        return any(
            segment is not None
            and segment.left is not None
            and segment.inode == found.inode
            and found.size > segment.left.end
            for found, segment in zip(files, known(files, places.segments or []), strict=True)
        )

    def _go_to_copy(self, places: Places, opened: OpenSegment) -> None:
        """The file was cut short: what of it is unread stands in the copy that was made before."""
        segment, offset = opened.segment, opened.offset
        others = [one for one in places.files() if one.inode != segment.inode and one.size >= offset]
        whole = replace(segment, left=None)
        copies = [one for one, of in zip(others, known(others, [whole]), strict=True) if of is not None]
        copies = [one for one in copies if opened.is_like(one.path)]
        if not copies:
            self._lose(f"it was cut short after byte {offset} was read, and no copy of it is there")
        left = end_mark(copies[-1].path, offset) if copies else unknown_mark(offset)
        self._is_skipping = opened.is_skipping and bool(copies)
        self._leave(places, opened, left)

    def _leave(self, places: Places, opened: OpenSegment, left: Mark) -> None:
        """Be done with a file; left: the bytes before the point to which it was read."""
        others = [one for one in places.segments or () if one.rank != opened.segment.rank]
        places.segments = [*others, replace(opened.segment, left=left)]
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _lose(self, what: str) -> None:
        """Note that lines may be lost; a dead letter says so with the next line's file."""
        self._lost.append(what)
        _LOG.warning("lines_lost: %s: file %s: %s", self._where, self._log, what)

    def _tell(self, taken: Taken) -> None:
        if self._lost and self._open is not None:
            reason = f"lines may be lost here: file {self._log}: {'; '.join(self._lost)}"
            taken.rejects.append(Reject(self._open.position() | 1, reason, b"", code="lines_lost"))
            self._lost = []


def _again(files: list[Found], segment: Segment, offset: int) -> Found | None:
    """The file of a segment that was read up to `offset`."""
    for wanted in (segment, replace(segment, left=None)):
        owners = zip(files, known(files, [wanted]), strict=True)
        found = [one for one, of in owners if of is not None and one.size >= offset]
        found.sort(key=lambda one: one.inode == segment.inode)
        if found:
            return found[-1]
    return None


def _literal(name: str) -> str:
    """A name as a pattern that fits it alone."""
    return re.sub(r"([*?[])", r"[\1]", name)
