"""Which files a tailed log consisted of: a durable list of segments, and how files are known again.

Below `geartrain_devices.tail_files`. A segment is a stretch of one file, from a byte on; its rank and a byte
are a position. Guarantees: a segment is on the disk before a line of it is given out, so that a position
always finds its file again. A file is known by its first bytes and by the bytes before the point
to which it was read. So a renamed file and a copy are the same file, and one that was cut short and filled
anew is another. The list is locked, so that two processes never share it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from geartrain.adapters.file_lock import take_lock
from geartrain.adapters.files import write_durable
from geartrain.errors import SourceError

START_BYTES_MAX = 4_096
"""First bytes of a file by which it is known, at the most."""
END_BYTES_MAX = 256
"""Bytes before the point to which a file was read by which it is known, at the most."""
_SURE_BYTES = 1_024
"""A copy that begins with so many equal bytes is one even while its original is there."""
_FILES_MAX = 1_000
_SEGMENTS_KEPT = 256
"""Ranks below the current one that are kept whether their file is there or not: a commit may lag."""
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".tmp", ".swp")


class Mark(msgspec.Struct, frozen=True):
    """Some bytes of a file: where they end, how many they are, and their digest."""

    end: int
    size: int
    digest: str


class Segment(msgspec.Struct, frozen=True):
    """A stretch of a file.

    Args:
        rank: in the order of reading, -1 for what was there before and is never read.
        inode: of the file when it was last seen.
        start: the first bytes of the file.
        begin: the byte that the stretch begins at.
        left: the bytes before the point where it was left, None where it is read still.
    """

    rank: int
    inode: int
    start: Mark
    begin: int
    left: Mark | None = None


class Found(msgspec.Struct, frozen=True):
    """A file that is there: its path, inode, bytes, and time of its last change, nanoseconds."""

    path: Path
    inode: int
    size: int
    changed_ns: int


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    split: str
    segments: list[Segment]
    version: int = 1


def mark_of(file: int, end: int, size: int) -> Mark | None:
    """The mark of the `size` bytes before `end` of an open file; None where it has fewer."""
    data = os.pread(file, size, end - size) if size else b""
    return Mark(end, size, _digest(data)) if len(data) == size else None


def start_of(path: Path) -> Mark:
    """The mark of the first bytes of a file; an empty one where it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(START_BYTES_MAX)
    except OSError:
        data = b""
    return Mark(len(data), len(data), _digest(data))


class Places:
    """The segments of one split, kept in a file of the folder `keep`."""

    def __init__(self, where: str, split: str, keep: Path, log: Path, rotated: str) -> None:
        """where: how sentences begin; log: the file that is written; rotated: the pattern of the names that
        it gets later. Raises `SourceError` where the folder cannot be used, or is in use.
        """
        name = hashlib.blake2b(f"{split}\n{log}".encode(), digest_size=8).hexdigest()
        self._where, self._split, self._log, self._rotated = where, split, log, rotated
        self._path = keep / f"{name}.json"
        self._lock = take_lock(
            keep / f"{name}.lock",
            SourceError,
            unusable=f"{where}: keep = {str(keep)!r} cannot be used",
            taken=f"{where}: another process reads {log} as {split} and keeps its place in {keep}: "
            "end it, or set another folder as keep",
        )
        try:
            self.segments: list[Segment] | None = self._load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)

    def _load(self) -> list[Segment] | None:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{self._where}: {self._path}, which says what has been read, cannot be read ({error}): "
                "remove it, and the log is read from its beginning"
            ) from None
        return kept.segments

    def keep(self, segments: list[Segment]) -> None:
        """Make this the list, durably; what nobody needs any more is left out."""
        last = max((one.rank for one in segments), default=-1)
        old = [one for one in segments if one.left is not None and one.rank < last - _SEGMENTS_KEPT]
        if len(old) > _SEGMENTS_KEPT:
            there = [one for one in known(self.files(), segments) if one is not None]
            segments = [one for one in segments if one not in old or one in there]
        self.segments = segments
        content = msgspec.json.encode(_Kept(self._split, segments))
        try:
            write_durable(self._path, content)
        except OSError as error:
            raise SourceError(f"{self._where}: {self._path} cannot be written: {error.strerror}") from None

    def files(self) -> list[Found]:
        """The log and what it was renamed or copied to, in the order in which they were written."""
        try:
            paths = [one for one in self._log.parent.glob(self._rotated) if one.name != self._log.name]
        except OSError as error:
            folder = self._log.parent
            raise SourceError(f"{self._where}: folder {folder} cannot be read: {error.strerror}") from None
        found = [one for path in paths if not path.name.endswith(_PACKED) and (one := look(path)) is not None]
        found.sort(key=_age)
        live = look(self._log)
        return found[-_FILES_MAX:] + ([live] if live is not None else [])


def _age(found: Found) -> tuple[int, int, str]:
    """Older ones first; of two that were changed at one time `app.log.2` before `app.log.1`."""
    number = found.path.suffix[1:]
    counted = int(number) if number.isdecimal() and number.isascii() and len(number) < 5 else 0
    return found.changed_ns, -counted, found.path.name


def look(path: Path) -> Found | None:
    """What is there at `path`, None where it is no file."""
    try:
        said = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(said.st_mode):
        return None
    return Found(path, said.st_ino, said.st_size, said.st_mtime_ns)


def end_mark(path: Path, offset: int) -> Mark:
    """The mark of the last bytes before `offset`; one that fits nothing where they cannot be read."""
    try:
        with path.open("rb") as file:
            found = mark_of(file.fileno(), offset, min(offset, END_BYTES_MAX))
    except OSError:
        found = None
    return found or unknown_mark(offset)


def unknown_mark(offset: int) -> Mark:
    """A mark that fits no file."""
    return Mark(offset, 0, "")


def known(files: list[Found], segments: list[Segment]) -> list[Segment | None]:
    """Of each file the last segment that is of it, None for one that has not been read.

    A file of another inode that begins alike is a copy: where it begins with many equal bytes, or where the
    file that was read is gone.
    """
    starts = [_Start(one) for one in files]
    fitting = [[n for n, one in enumerate(segments) if start.is_of(one)] for start in starts]
    pairs = list(zip(files, fitting, strict=True))
    there = {n for found, fit in pairs for n in fit if segments[n].inode == found.inode}

    def is_it(found: Found, n: int) -> bool:
        return segments[n].inode == found.inode or segments[n].start.size >= _SURE_BYTES or n not in there

    return [next((segments[n] for n in reversed(fit) if is_it(found, n)), None) for found, fit in pairs]


class _Start:
    """The first bytes of a file, read once."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._digests: dict[int, str] = {}
        try:
            with found.path.open("rb") as file:
                self._data = file.read(START_BYTES_MAX)
        except OSError:
            self._data = b""

    def is_of(self, segment: Segment) -> bool:
        """Whether the segment is of this file."""
        start, left, found = segment.start, segment.left, self._found
        if not start.size:  # it was empty: there is nothing else to know it by
            return found.inode == segment.inode
        if len(self._data) < start.size or self._digest(start.size) != start.digest:
            return False
        if left is None:
            return True
        if found.size < left.end:  # a copy made before the end was written
            return found.inode != segment.inode and start.size >= _SURE_BYTES
        try:
            with found.path.open("rb") as file:
                return mark_of(file.fileno(), left.end, left.size) == left
        except OSError:
            return False

    def _digest(self, size: int) -> str:
        if size not in self._digests:
            self._digests[size] = _digest(self._data[:size])
        return self._digests[size]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
