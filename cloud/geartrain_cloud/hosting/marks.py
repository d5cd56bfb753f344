"""What each of Spark's workers runs right now: a file of 256 bytes for each, which outlives a killed one.

Spark's own errors name no flow. Beside the record's path: a worker sets its mark before it runs a flow's code
and takes it away after. The host looks at the marks. Guarantees: the mark of a process that died in a flow's
code names the flow. Setting one costs no call to the system.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OPENING_S = 30.0
"""So much longer it may take to import a flow's code, once for each worker."""
CALL_S = 0.01
"""So much longer work may take for each call of a flow's code that is in it."""

_SIZE = 256


class Marks:
    """The marks of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._map: mmap.mmap | None = None
        self._what = b""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Say in the block that this process runs the code of generation `name`."""
        self._what = name.encode()[: _SIZE - 32]
        self._touch(OPENING_S)
        try:
            yield
        finally:
            self._write(b"")

    def goes_on(self, calls: int = 0) -> None:
        """Say that it has come further; what comes next calls the flow's code about `calls` times."""
        self._touch(calls * CALL_S)

    def _touch(self, more_s: float) -> None:
        self._write(f"{time.monotonic() + more_s:.3f} ".encode() + self._what)

    def _write(self, raw: bytes) -> None:
        if self._map is None or self._pid != os.getpid():  # a fork has its parent's
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._pid = os.getpid()
            path = self._folder / str(self._pid)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
            os.close(descriptor)
        self._map[:_SIZE] = raw.ljust(_SIZE, b"\0")


@dataclass(frozen=True, slots=True)
class Seen:
    """A mark as the host finds it: of which process, for how long, and in which generation's code."""

    pid: int
    is_alive: bool
    seconds: float
    name: str


def seen_marks(folder: Path) -> list[Seen]:
    """The marks of all processes that run a flow's code, or died in it; those of others that died go."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.isdecimal():
            continue
        alive = is_alive(int(path.name))
        try:
            since, _, name = path.read_bytes().rstrip(b"\0").decode(errors="replace").partition(" ")
        except FileNotFoundError:
            continue
        if name:
            found.append(Seen(int(path.name), alive, time.monotonic() - float(since), name))
        elif not alive:
            path.unlink(missing_ok=True)
    return found


def forget_mark(folder: Path, pid: int) -> None:
    """Remove the mark of a process that is gone."""
    (folder / str(pid)).unlink(missing_ok=True)


def clear_marks(folder: Path) -> None:
    """Forget who died; a worker that lives keeps its file, which it would not make again."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.isdecimal() and not is_alive(int(path.name)):
            path.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and whose parent has not asked does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"
