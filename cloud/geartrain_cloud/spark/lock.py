"""One host for each state folder: a lock that ends with the processes that hold it.

The host takes it before a session starts. The JVM holds it as well, because it may outlive a host killed
with -9 for a moment. The next JVM may open the same checkpoints only when that one is gone. No stale lock can
be left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from geartrain.adapters.file_lock import open_lock, try_lock
from geartrain_cloud.errors import StateError
from geartrain_cloud.spark.errors import QueryError, RefusedError

LOCK_FILE = "host.lock"
"""In the state folder."""

LEAVING_WAIT_S = 30.0
"""How long to wait for the JVM of a host that is gone."""

_PAUSE_S = 0.1


class StateLock:
    """The lock on a state folder, held until `release` or the end of all that hold `descriptor`."""

    def __init__(self, folder: Path, wait_s: float = LEAVING_WAIT_S) -> None:
        """Take it; raises `RefusedError` where another host has it, `QueryError` where its Java does."""
        self.descriptor = open_lock(folder / LOCK_FILE)
        deadline = time.monotonic() + wait_s
        while not try_lock(self.descriptor):
            holder = os.pread(self.descriptor, 20, 0).decode(errors="replace")
            is_alive = _is_alive(holder)
            if is_alive or time.monotonic() > deadline:
                os.close(self.descriptor)
                # One whose Java takes long to end may be gone at the next start; one that runs will not.
                kind = RefusedError if is_alive else QueryError
                raise kind(
                    f"another host (process {holder or 'unknown'}) runs on {folder}: stop it, or use "
                    "another state folder"
                )
            time.sleep(_PAUSE_S)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go of it in this process."""
        os.close(self.descriptor)


@contextmanager
def no_reader(locks: Iterable[Path]) -> Iterator[None]:
    """Keep Spark hosts with these locks from starting; raises `StateError` where one runs."""
    held = []
    try:
        for path in locks:
            if path.exists():
                held.append(open_lock(path))
                if not try_lock(held[-1]):
                    raise StateError(f"Spark runs on {path.parent}: stop the platform first")
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _is_alive(holder: str) -> bool:
    if not holder.isdecimal():
        return False
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
