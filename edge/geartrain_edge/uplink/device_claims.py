"""The claims of urgent flows between the processes of one device: a lock on a file, which the kernel keeps.

Beside `Priority`, which is of one process. Guarantees: a claim ends at the latest with the process that made
it, however it ends. Claims of several processes do not disturb each other, nor do looks. No call waits.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from geartrain.errors import DiskError

_IS_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("@hhqqi" if _IS_LINUX else "@qqihh")
_ANY = os.SEEK_SET, 0, 0, 0
"""Of the whole file: whence, start, length, and no process."""


class DeviceClaims:
    """The claims of this process, and those of others."""

    def __init__(self, path: Path) -> None:
        """Opens the file at `path`, which is made where it is missing; raises `DiskError`."""
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskError(f"{path} cannot be opened: {error.strerror or error}") from None

    def claim(self) -> None:
        """Have the other processes wait, until `release` or the end of this process."""
        fcntl.lockf(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let them go on."""
        fcntl.lockf(self._handle, fcntl.LOCK_UN)

    def is_claimed(self) -> bool:
        """Whether another process claims."""
        found = fcntl.fcntl(self._handle, fcntl.F_GETLK, _asked())
        return _kind(found) != fcntl.F_UNLCK

    def close(self) -> None:
        """Release, and use it no more."""
        os.close(self._handle)


def _asked() -> bytes:
    """The question which lock stands in the way of one for writing."""
    whence, start, length, process = _ANY
    if _IS_LINUX:
        return _FLOCK.pack(fcntl.F_WRLCK, whence, start, length, process)
    return _FLOCK.pack(start, length, process, fcntl.F_WRLCK, whence)


def _kind(answer: bytes) -> int:
    fields = _FLOCK.unpack(answer)
    return int(fields[0] if _IS_LINUX else fields[3])
