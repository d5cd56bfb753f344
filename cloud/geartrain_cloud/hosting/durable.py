"""Up to where a group's checkpoint is durable: Spark writes its files without syncing them.

Beside the record's path, between a group and the file system of its folder. Guarantees: what `take` returns
was committed before a sync that is done. Spark keeps the files of its last 100 micro-batches, and a sync
begins after half as many. So a loss of power leaves a micro-batch from which Spark can go on. That one is no
older than what was returned last.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SYNC_EVERY_S = 30.0
"""How often the checkpoint is made durable."""
SYNC_MICRO_BATCHES = 50
"""After so many micro-batches it is, whatever the time: half of those whose files Spark keeps."""

_log = logging.getLogger("host")


def sync_file_system(folder: Path) -> None:
    """Make durable all that any process has written to the file system of a folder; raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs"):  # not Linux
            os.sync()
        elif library.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Committed:
    """offsets: of the last micro-batch that was committed before a sync; gone: the generations that had left
    with it, or before.
    """

    offsets: Mapping[str, int]
    gone: tuple[str, ...]


class DurableCheckpoint:
    """The checkpoint in one folder. Its regular syncs have a thread of their own: a disk may be slow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._under_way: tuple[Committed, Future[None]] | None = None
        self._began_s, self._began_at = time.monotonic(), -1
        self._has_failed = False

    def sync(self) -> None:
        """Make all of it durable that was written before; raises `OSError`."""
        sync_file_system(self._folder)

    def is_due(self, batch_id: int, *, soon: bool) -> bool:
        """Whether to `begin` with a sync; batch_id: the last micro-batch that was run; soon: one waits."""
        if self._under_way is not None:
            return False
        is_far = abs(batch_id - self._began_at) >= SYNC_MICRO_BATCHES
        is_long_ago = time.monotonic() - self._began_s >= SYNC_EVERY_S
        return is_long_ago or (not self._has_failed and (soon or is_far))

    def begin(self, batch_id: int, committed: Committed) -> None:
        """Begin to sync; committed: what that makes durable."""
        self._began_s, self._began_at = time.monotonic(), batch_id
        self._under_way = committed, self._thread.submit(self.sync)

    def take(self) -> Committed | None:
        """What has become durable since the last call. A sync that failed has made nothing durable."""
        if self._under_way is None or not self._under_way[1].done():
            return None
        committed, done = self._under_way
        self._under_way = None
        error = done.exception()
        self._has_failed = error is not None
        if error is not None:
            _log.warning("%s cannot be synced, so the log is kept: %s", self._folder, error)
            return None
        return committed

    def close(self) -> None:
        """Wait for a sync that is under way."""
        self._thread.shutdown(wait=True)
