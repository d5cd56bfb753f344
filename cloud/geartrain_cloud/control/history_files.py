"""The files of histories that REST has taken in, piece by piece, each under its own digest.

Between `gear backfill` and the agents that read them. Guarantees: what has come is synced before it is told,
so that a transfer that was cut off goes on from there. A file is whole once its digest is its name. One of an
app goes when that is purged, and one that no app names with the next purge of a device.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from geartrain.adapters.files import make_private_folder
from geartrain.operators.source import HISTORY
from geartrain_cloud.control_store.errors import ConflictError, InvalidError, StoreError
from geartrain_cloud.control_store.histories import FILE_NAME
from geartrain_cloud.control_store.model import Instance

PIECE_BYTES_MAX = 2 << 20
FREE_BYTES = 1 << 30
"""Of the disk that stay free."""
_PARQUET, _LINES = ".parquet", ".jsonl"


class HistoryFiles:
    """Those in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where agents read a whole file of this name, or would; raises `InvalidError` for what is no name.

        That of a Parquet file has its rows as JSON lines.
        """
        brought = self.brought(name)
        return brought.with_suffix(_LINES) if brought.suffix == _PARQUET else brought

    def brought(self, name: str) -> Path:
        """Where a whole file of this name is as it came, or would be; raises as `path`."""
        if not FILE_NAME.fullmatch(name):
            raise InvalidError(
                "a history is named by the SHA-256 of its file, and .parquet, or one of .csv, .tsv, .jsonl, "
                ".ndjson, .log and .txt, which .gz may follow"
            )
        return self._folder / name

    def standing(self, name: str) -> tuple[int, bool]:
        """How many bytes of the file are there, and whether it is whole."""
        brought = self.brought(name)
        for one, whole in ((brought, True), (self.path(name), True), (_part(brought), False)):
            if one.exists():
                return one.stat().st_size, whole
        return 0, False

    def append(self, name: str, begin: int, content: bytes) -> tuple[int, bool]:
        """Take the piece that begins at byte `begin`, where the file ends there; how far the file is then.

        Raises `StoreError` where the disk has no room.
        """
        size, whole = self.standing(name)
        if whole or size != begin:
            return size, whole
        try:
            make_private_folder(self._folder)
            if shutil.disk_usage(self._folder).free < FREE_BYTES + len(content):
                raise StoreError("the disk of the platform has no room for more history: make some")
            part = _part(self.brought(name))
            is_new = not part.exists()
            with open(part, "ab", opener=_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                _sync(self._folder)
        except OSError as error:
            raise StoreError(f"the history cannot be kept: {error.strerror or error}") from None
        return size + len(content), False

    def finish(self, name: str) -> None:
        """The file has come as a whole. Raises `ConflictError`, and drops it, where its digest is another."""
        path = self.brought(name)
        if path.exists() or self.path(name).exists():
            return
        part = _part(path)
        try:
            with part.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != name.partition(".")[0]:
                part.unlink()
                raise ConflictError("the file was changed while it was sent: send it again")
            part.replace(path)
            _sync(self._folder)
        except FileNotFoundError:
            raise ConflictError("nothing of the file has come: send it") from None
        except OSError as error:
            raise StoreError(f"the history cannot be kept: {error.strerror or error}") from None

    def whole(self, name: str) -> Path:
        """The path of a whole file, of a Parquet file as it came where agents cannot read it yet; raises
        `ConflictError` where it has not come.
        """
        for path in (self.path(name), self.brought(name)):
            if path.exists():
                return path
        raise ConflictError("the history has not come as a whole: send it first, as gear backfill does")

    def remove(self, paths: Collection[str]) -> None:
        """Remove these files, which no app names any more; what cannot be removed goes with a later purge."""
        for name in {Path(path).name for path in paths}:
            if FILE_NAME.fullmatch(name):
                with suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)

    def keep(self, paths: Collection[str]) -> None:
        """Remove all files but these, and what has not come as a whole. Raises `OSError`."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if str(path) not in paths:
                path.unlink(missing_ok=True)


def given(instance: Instance) -> Iterator[tuple[str, str]]:
    """The history that an app was given: of which device, and the path of each file."""
    for device, steps in instance.device_options.items():
        for options in steps.values():
            yield from ((device, path) for path in options.get(HISTORY, {}).get("files", ()))
    for options in instance.options.values():
        past = options.get(HISTORY, {})
        yield from ((past.get("device", ""), path) for path in past.get("files", ()))


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
