"""Files of lines on the device's disk, for the sinks that write them.

`geartrain_edge.sinks.delivering` uses them. Guarantees: when an append returns, the data and the file's entry
in its folder are durable. The next append first removes what a killed agent had appended and not noted. The
mode is 0600.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from geartrain.adapters.files import fsync_path
from geartrain.errors import SpoolError


class FolderFiles:
    """`LineFiles`: relative paths lie below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def size(self, path: str) -> int:
        """Bytes of the file, 0 where there is none; raises `SpoolError`."""
        return await _run(path, lambda: _size(self._folder / path))

    async def append(self, path: str, at: int, data: bytes) -> None:
        """Write `data` from byte `at` on, as the file's end; raises `SpoolError`."""
        await _run(path, lambda: _append(self._folder / path, at, data))


async def _run(path: str, work: Callable[[], int]) -> int:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise SpoolError(f"the file {path} of a sink cannot be written: {error.strerror}") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, at: int, data: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size < at:
            raise SpoolError(
                f"the file {path} of a sink has {size} bytes, and {at} were written to it: only the agent may"
                " change it; bring it back, or give the sink another path"
            )
        if size > at:
            os.ftruncate(handle, at)
        written = 0
        while written < len(data):
            written += os.pwrite(handle, data[written:], at + written)
        os.fsync(handle)
    finally:
        os.close(handle)
    if fresh:
        fsync_path(path.parent)
    return at + len(data)
