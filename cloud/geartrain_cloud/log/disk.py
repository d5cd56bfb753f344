"""The log's files on this machine's disk.

Under ingest. Guarantees: once `fsync` has returned, a file's content and name survive a power loss. Files
have mode 0600 and folders 0700. No name leads out of the folder. All calls run on one worker thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

from geartrain.adapters.files import fsync_path
from geartrain.errors import DiskError

T = TypeVar("T")


class OsDisk:
    """`Disk` in `folder`, which is made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._durable: set[Path] = set()
        """Folders below `folder` whose own place this process has made durable, up to the root's."""
        self._worker = ThreadPoolExecutor(1, "disk")

    async def write(self, name: str, data: bytes) -> None:
        """Create or replace the file `name`, mode 0600, and its parent folders; not durable yet."""
        await self._run("written", name, lambda path: self._write(path, data))

    async def fsync(self, name: str) -> None:
        """Make the content of `name` and its place in its folder, and theirs up to the root's, durable."""
        await self._run("made durable", name, self._fsync)

    async def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`; durable after `fsync(new)`."""
        target = self._path(new)
        await self._run("renamed", old, lambda path: path.replace(target))

    async def read(self, name: str) -> bytes:
        """The whole content of `name`."""
        return await self._run("read", name, Path.read_bytes)

    async def remove(self, name: str) -> None:
        """Delete `name`; no error where it is already gone."""
        await self._run("removed", name, lambda path: path.unlink(missing_ok=True))

    async def list(self, prefix: str = "") -> list[str]:
        """Names of all files whose name starts with `prefix`, sorted."""
        return await self._run("listed", "", lambda path: _list(path, prefix))

    def close(self) -> None:
        """Let the worker thread end."""
        self._worker.shutdown(wait=False)

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise DiskError(f"file {name!r} would lie outside of {self.folder}")
        return self.folder.joinpath(*parts)

    async def _run(self, done: str, name: str, work: Callable[[Path], T]) -> T:
        path = self._path(name)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work, path)
        except OSError as error:
            raise DiskError(f"{path} cannot be {done}: {error.strerror or error}") from error

    def _write(self, path: Path, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in reversed(self._above(path)):
            if not folder.is_dir():
                self._durable.discard(folder)  # somebody has removed it
                folder.mkdir(exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def _fsync(self, path: Path) -> None:
        fsync_path(path)
        fsync_path(path.parent)
        # A folder is durable once its place in its parent is, and that stays so. Another process may have
        # made it and died, so each one is synced once in this process, too.
        fresh = [folder for folder in self._above(path) if folder not in self._durable]
        for folder in fresh:
            fsync_path(folder.parent)
        self._durable.update(fresh)

    def _above(self, path: Path) -> tuple[Path, ...]:
        """The folders between a file and the root, the innermost first."""
        return tuple(self.folder / one for one in path.relative_to(self.folder).parents[:-1])


def _list(folder: Path, prefix: str) -> list[str]:
    if not folder.is_dir():
        return []
    # Only the prefix's own folder is walked, so that listing segments never meets the rest.
    top = folder.joinpath(*PurePosixPath(prefix).parts[: -1 if not prefix.endswith("/") else None])
    names = [path.relative_to(folder).as_posix() for path in top.rglob("*") if path.is_file()]
    return sorted(name for name in names if name.startswith(prefix))
