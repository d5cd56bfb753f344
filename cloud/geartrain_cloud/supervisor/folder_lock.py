"""The lock of a platform's state folder: one `gear up` at a time, found and ended by `gear down`.

Around everything that a platform does. Guarantees: two never work in one folder. The lock ends with its
process, however that ends. Who holds it is known by its process id.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from geartrain.adapters.file_lock import open_lock, try_lock
from geartrain_client.rest.door import LOCK_FILE
from geartrain_cloud.errors import StateError

_PID_BYTES_MAX = 20


class FolderLock:
    """The folder, taken; use it as a context manager, which gives it back."""

    def __init__(self, folder: Path) -> None:
        """Take `folder`, made if need be; raises `StateError` where another has it."""
        try:
            self._descriptor = open_lock(folder / LOCK_FILE)
        except OSError as error:
            raise StateError(
                f"the state folder {folder} cannot be used ({error.strerror or error}): name one that can be "
                "written, with --state or GEARTRAIN_STATE"
            ) from None
        if not try_lock(self._descriptor):
            pid = _pid_in(self._descriptor)
            os.close(self._descriptor)
            who = f" (process {pid})" if pid else ""
            raise StateError(
                f"a platform runs in {folder} already{who}: gear down --state {folder} ends it, or give "
                "another --state"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def end_holder(folder: Path, within_s: float) -> int | None:
    """Ask who holds the folder to end, and wait for it; its process id, None where nobody does.

    Raises `StateError` when it has not ended within the time, or may not be asked.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if try_lock(descriptor):
            return None
        pid = _pid_in(descriptor)
        if pid is None:
            raise StateError(f"{folder} is in use by a process that has not said its number: end it yourself")
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError:
            raise StateError(f"process {pid} in {folder} is another user's: end it as that user") from None
        except ProcessLookupError:
            pass  # it has just ended
        deadline = time.monotonic() + within_s
        while not try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise StateError(f"process {pid} in {folder} has not ended within {within_s:g} s")
            time.sleep(0.05)
        return pid
    finally:
        os.close(descriptor)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, _PID_BYTES_MAX, 0)
    return int(text) if text.isdigit() and int(text) > 1 else None
