"""Where a backup is written: a new folder, or a new tar file. It appears whole, or not at all.

Under `writing`. Guarantees: all is written below a draft beside the output, with mode 0600, and synced. Only
then does it get its name. A draft that a kill leaves is removed by the next backup to the same place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol

from geartrain.adapters.files import fsync_path, make_private_folder
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.backup.manifest import MANIFEST, Kept

BLOCK = 1 << 20

Fill = Callable[[Path], None]


class Target(Protocol):
    """A backup that is being written. Every call raises `OSError`."""

    def add(self, name: str, source: Path) -> Kept:
        """Put a copy of `source` into it."""
        ...

    def make(self, name: str, fill: Fill) -> Kept:
        """Put in what `fill` writes to the path that it is given."""
        ...

    def finish(self, manifest: bytes) -> None:
        """Make it whole, and durable."""
        ...

    def abandon(self) -> None:
        """Leave nothing of it."""
        ...


def open_target(output: Path) -> Target:
    """A file where its name ends in `.tar`, else a folder; raises `BackupError` where something is there."""
    if output.exists() or output.is_symlink():
        raise BackupError(f"{output} is there already: give --output another name, or remove it")
    try:
        make_private_folder(output.parent)
        return _TarTarget(output) if output.suffix == ".tar" else _FolderTarget(output)
    except OSError as error:
        raise BackupError(f"{output} cannot be written: {error.strerror or error}") from error


def _draft_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.draft")


class _FolderTarget:
    def __init__(self, output: Path) -> None:
        self._output, self._draft = output, _draft_of(output)
        shutil.rmtree(self._draft, ignore_errors=True)
        make_private_folder(self._draft)

    def add(self, name: str, source: Path) -> Kept:
        goal = self._place(name)
        with source.open("rb") as file, open_private(goal) as copy:
            size, digest = copied(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
        return Kept(name, size, digest)

    def make(self, name: str, fill: Fill) -> Kept:
        goal = self._place(name)
        open_private(goal).close()
        fill(goal)
        fsync_path(goal)
        with goal.open("rb") as file:
            size, digest = copied(file, None)
        return Kept(name, size, digest)

    def finish(self, manifest: bytes) -> None:
        with open_private(self._draft / MANIFEST) as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        for folder in [path for path in self._draft.rglob("*") if path.is_dir()]:
            fsync_path(folder)
        fsync_path(self._draft)
        self._draft.rename(self._output)
        fsync_path(self._output.parent)

    def abandon(self) -> None:
        shutil.rmtree(self._draft, ignore_errors=True)

    def _place(self, name: str) -> Path:
        goal = self._draft / name
        make_private_folder(goal.parent)
        return goal


class _TarTarget:
    def __init__(self, output: Path) -> None:
        self._output, self._draft = output, _draft_of(output)
        self._made = self._draft.with_name(f"{self._draft.name}.database")
        self._draft.unlink(missing_ok=True)
        self._file = open_private(self._draft)
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, source: Path) -> Kept:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            hashing = _Hashing(file, size)
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o600
            self._tar.addfile(member, hashing)
        return Kept(name, size, hashing.digest())

    def make(self, name: str, fill: Fill) -> Kept:
        self._made.unlink(missing_ok=True)
        open_private(self._made).close()
        try:
            fill(self._made)
            return self.add(name, self._made)
        finally:
            self._made.unlink(missing_ok=True)

    def finish(self, manifest: bytes) -> None:
        member = tarfile.TarInfo(MANIFEST)
        member.size, member.mode = len(manifest), 0o600
        self._tar.addfile(member, BytesIO(manifest))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.rename(self._output)
        fsync_path(self._output.parent)

    def abandon(self) -> None:
        self._file.close()
        for path in (self._draft, self._made):
            path.unlink(missing_ok=True)


class _Hashing:
    """A file that is hashed while it is read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self._hash = file, size, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(self._left if count < 0 else min(count, self._left))
        self._left -= len(data)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def copied(file: BinaryIO, goal: BinaryIO | None) -> tuple[int, str]:
    """Copy what is left of a file; its bytes and their SHA-256. goal: None where it is only read."""
    size, digest = 0, hashlib.sha256()
    while data := file.read(BLOCK):
        size += len(data)
        digest.update(data)
        if goal is not None:
            goal.write(data)
    return size, digest.hexdigest()


def open_private(path: Path) -> BinaryIO:
    """A new file of mode 0600, to be written; raises `OSError`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
