"""Which files of a directory are complete, so that they can be read once and for all.

Under `geartrain_devices.directory`. A file is complete once nothing has been written to it for a time, and no
process has it open for writing, where the system tells. A file that was closed and is older than that time,
and one that was renamed into place when it was, are complete at once. Guarantees: a file that grows after it
was read is named in a warning, with the bytes that are not read.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from geartrain.printable import printable

_LOG = logging.getLogger("geartrain.devices")

OPEN_TOLD_S: Final = 60.0
"""A file that is open for writing and does not change for so long is named in a warning."""

Mark = tuple[int, int, int]
"""What changes when a file is written to: its inode, its size in bytes, and the time in nanoseconds."""


class _Seen(msgspec.Struct):
    """A file as it was when it last changed. since_s: when that was noticed; is_told: of its being open."""

    mark: Mark
    since_s: float
    is_told: bool = False


class CompleteFiles:
    """What is known of the files of one directory, in this life of the process."""

    def __init__(
        self, source: str, folder: Path, settle_ms: int, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """source: how the log calls it; settle_ms: how long a file must not have changed."""
        self._source, self._folder = source, folder
        self._settle_s, self._monotonic_s = settle_ms / 1_000, monotonic_s
        self._seen: dict[str, _Seen] = {}
        self._read: dict[str, int] = {}
        self._grown_files = set[str]()
        self._grown_bytes = 0

    def look(self, names: Iterable[str]) -> None:
        """Look how large these files are, which have not been read: all of them settle at the same time."""
        for name in names:
            self._look(name)

    def is_complete(self, name: str, *, is_last: bool) -> bool:
        """Whether a file may be read; asked again and again until then.

        Args:
            name: of the file.
            is_last: the writer has said that no more will come, so that the time need not pass.
        """
        seen, now_s = self._look(name), self._monotonic_s()
        if seen is None:
            return False  # it has gone, which the next look at the directory tells
        is_settled = is_last or now_s - seen.since_s >= self._settle_s
        # An old file need not be watched; as clocks may be wrong, only where its writer is known to be gone.
        if not is_settled and time.time() - seen.mark[2] / 1e9 < self._settle_s:
            return False
        is_open = is_open_for_writing(self._folder / name)
        if is_open:
            self._tell_open(name, seen, now_s)
        elif is_settled or is_open is False:
            del self._seen[name]
            return True
        return False

    def begin(self, name: str) -> None:
        """Note how large a file is that is read now."""
        self._read[name] = self._size(name)

    def check_grown(self, name: str, *, is_all_read: bool) -> None:
        """Warn where a file has grown since it was read.

        Args:
            name: of the file; one that was not read in this life of the process is passed over.
            is_all_read: this very moment all of it has been read, so that bytes that came meanwhile were read
                as well, though the last row may have been cut.
        """
        before, now = self._read.get(name), self._size(name)
        if before is None or now <= before:
            return
        self._read[name] = now
        self._grown_files.add(name)
        self._grown_bytes += now - before
        grew = "while it was read" if is_all_read else "after it was read, and these are lost"
        _LOG.warning(
            "file_grew: %s: file %s grew by %d bytes %s (%d files and %d bytes by now): write files under "
            "another name and rename them, or set settle_ms above the longest pause of the writer",
            *(self._source, printable(name), now - before, grew, len(self._grown_files), self._grown_bytes),
        )

    def _look(self, name: str) -> _Seen | None:
        try:
            stat = (self._folder / name).stat()
        except OSError:
            return None
        mark, seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns), self._seen.get(name)
        if seen is None or seen.mark != mark:
            seen = self._seen[name] = _Seen(mark, self._monotonic_s())
        return seen

    def _size(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return 0

    def _tell_open(self, name: str, seen: _Seen, now_s: float) -> None:
        if not seen.is_told and now_s - seen.since_s >= OPEN_TOLD_S:
            seen.is_told = True
            _LOG.warning(
                "file_open: %s: file %s and those behind it wait: a process has the file open for writing",
                *(self._source, printable(name)),
            )


def is_open_for_writing(path: Path) -> bool | None:
    """Whether a process of this machine has a file open for writing; None where the system does not tell.

    Linux gives a lease on a file only where nobody has it open for writing. It gives one to the file's owner
    and to root, on file systems of this machine.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Who opens it this very moment breaks the lease, of which a signal tells; this one is ignored.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(file)
    return False
