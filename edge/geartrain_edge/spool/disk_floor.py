"""The floor of a disk: what the spool leaves free, so that the system that it shares the disk with lives.

Beside the spool; the agent asks it before it reads, and the spool's policy does the rest. Guarantees: while
less than the floor is free, the spool's file does not grow by batches. What acks have freed within the file
is used again, because SQLite gives nothing back to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Room(Protocol):
    """How much a spool may hold."""

    def now(self, bytes_max: int) -> int:
        """Bytes of batches that it may hold now, `bytes_max` at most."""
        ...


class Unlimited:
    """`Room` where nobody says how much is free."""

    def now(self, bytes_max: int) -> int:
        """All of it."""
        return bytes_max


def free_bytes(folder: Path) -> int:
    """Bytes that are free for this user on the disk of `folder`; raises `OSError`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def size_bytes(path: Path) -> int:
    """Bytes of a file; raises `OSError`."""
    return path.stat().st_size


class DiskFloor:
    """`Room` of the spool in the file `path`, on a disk of which `floor_bytes` stay free."""

    def __init__(
        self,
        path: Path,
        floor_bytes: int,
        free: Callable[[Path], int] = free_bytes,
        size: Callable[[Path], int] = size_bytes,
    ) -> None:
        self._path, self._floor_bytes, self._free, self._size = path, floor_bytes, free, size

    def now(self, bytes_max: int) -> int:
        """Bytes of batches that it may hold now: below the floor, about what its file has room for."""
        try:
            if self._free(self._path.parent) >= self._floor_bytes:
                return bytes_max
            # An eighth is for what a page holds besides, and for positions and state.
            return min(bytes_max, self._size(self._path) * 7 // 8)
        except OSError:  # a disk that cannot be asked says so at the next commit
            return bytes_max
