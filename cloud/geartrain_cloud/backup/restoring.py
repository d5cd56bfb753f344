"""Bringing a backup back into an empty state folder, from which the next `gear up` goes on.

Beside the record's path. Guarantees: every file is compared with the manifest before anything is written, and
again while it is. A folder that a kill leaves half restored has a mark: no process of a platform uses it, and
the next restore begins anew. Nothing but such a folder is ever emptied.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from geartrain.adapters.file_lock import locked
from geartrain.adapters.files import fsync_path, make_private_folder, write_durable
from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.backup.manifest import MANIFEST, MANIFEST_BYTES_MAX, Kept, Manifest, decode_manifest
from geartrain_cloud.backup.moment import Notice
from geartrain_cloud.backup.target import copied, open_private
from geartrain_cloud.control_store.histories import move_histories
from geartrain_cloud.platform.places import RESTORING, PlatformPlaces
from geartrain_cloud.spark.schema_paths import is_bound, rebound

_BUSY_S = 10.0


@dataclass(frozen=True, slots=True)
class Restored:
    """made_us: the moment of the backup, microseconds since 1970 UTC; version: of Geartrain that made it;
    files and size: how many, and their bytes.
    """

    state: Path
    made_us: int
    version: str
    files: int
    size: int


def restore(backup: Path, state: Path, notice: Notice = lambda said: None) -> Restored:
    """Bring a backup back.

    Args:
        backup: the folder or the tar file that `gear backup` made.
        state: the state folder: one that is empty, not there, or half restored.
        notice: told again and again what is being done, for people.

    Raises:
        BackupError: the backup is not whole, or the state folder holds something else.
    """
    backup, state = backup.absolute(), state.absolute()
    with _opened(backup) as source:
        manifest = _manifest(source, backup)
        for number, kept in enumerate(manifest.files):
            notice(f"checks file {number + 1} of {len(manifest.files)}")
            _read(source, kept, backup, None)
        try:
            _check_free(state)
            make_private_folder(state)
            with locked(
                state / RESTORING,
                BackupError,
                unusable=f"the state folder {state} cannot be used",
                taken=f"{state} is being restored by another gear restore: wait for it to end",
            ):
                _fill(source, manifest, backup, state, notice)
        except OSError as error:
            raise BackupError(
                f"{state} cannot be written: {error.strerror or error}: make room, and restore again"
            ) from error
    size = sum(kept.size for kept in manifest.files)
    return Restored(state, manifest.made_us, manifest.version, len(manifest.files), size)


def _check_free(state: Path) -> None:
    if state.exists() and not state.is_dir():
        raise BackupError(f"{state} is no folder: give --state another place")
    if state.is_dir() and any(state.iterdir()) and not (state / RESTORING).exists():
        raise BackupError(
            f"{state} is not empty: a backup is brought back to an empty folder only, so give --state "
            "another one, or move this one away"
        )


def _fill(source: Source, manifest: Manifest, backup: Path, state: Path, notice: Notice) -> None:
    fsync_path(state / RESTORING)
    fsync_path(state)
    fsync_path(state.parent)
    for path in state.iterdir():  # of a restore that was killed
        if path.name != RESTORING:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for number, kept in enumerate(manifest.files):
        notice(f"writes file {number + 1} of {len(manifest.files)}")
        goal = state / kept.name
        make_private_folder(goal.parent)
        with open_private(goal) as file:
            _read(source, kept, backup, file)
            file.flush()
            os.fsync(file.fileno())
        if is_bound(kept.name):
            write_durable(goal, rebound(kept.name, goal.read_bytes(), state))
    control = PlatformPlaces(state).control
    if control.is_file():
        with (
            translated(BackupError, f"the control store {control}"),
            closing(open_to_write(control, busy_s=_BUSY_S)) as database,
            transaction(database),
        ):
            move_histories(database, PlatformPlaces(state).histories)
    for folder in [path for path in state.rglob("*") if path.is_dir()]:
        fsync_path(folder)
    fsync_path(state)
    (state / RESTORING).unlink()
    fsync_path(state)


def _read(source: Source, kept: Kept, backup: Path, goal: BinaryIO | None) -> None:
    """Read one file of the backup, and compare it; raises `BackupError`."""
    try:
        with source.open(kept.name) as file:
            found = copied(file, goal)
    except FileNotFoundError:
        raise _damaged(backup, kept.name, "is missing") from None
    except tarfile.TarError as error:
        raise _damaged(backup, kept.name, f"cannot be read ({error})") from None
    if found != (kept.size, kept.sha256):
        raise _damaged(backup, kept.name, "is not what was backed up")


def _damaged(backup: Path, name: str, what: str) -> BackupError:
    return BackupError(f"the backup {backup} is damaged: {name} in it {what}; take another backup")


# Where a backup is read from


class Source(Protocol):
    """The files of a backup."""

    def open(self, name: str) -> BinaryIO:
        """One of them; raises `FileNotFoundError`, `OSError` or `tarfile.TarError`."""
        ...


class _FolderSource:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> BinaryIO:
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise FileNotFoundError(name)
        return path.open("rb")


class _TarSource:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {member.name: member for member in tar if member.isreg()}

    def open(self, name: str) -> BinaryIO:
        if name not in self._members:
            raise FileNotFoundError(name)
        return cast(BinaryIO, self._tar.extractfile(self._members[name]))


@contextmanager
def _opened(backup: Path) -> Iterator[Source]:
    try:
        if backup.is_dir():
            yield _FolderSource(backup)
            return
        with tarfile.open(backup, "r:") as tar:
            yield _TarSource(tar)
    except FileNotFoundError:
        raise BackupError(
            f"there is no backup at {backup}: name the folder or file that gear backup made"
        ) from None
    except tarfile.TarError as error:
        raise BackupError(
            f"{backup} is no backup, or is damaged ({error}): name what gear backup made"
        ) from None
    except OSError as error:
        raise BackupError(f"{backup} cannot be read: {error.strerror or error}") from None


def _manifest(source: Source, backup: Path) -> Manifest:
    try:
        with source.open(MANIFEST) as file:
            raw = file.read(MANIFEST_BYTES_MAX)
    except FileNotFoundError:
        raise BackupError(
            f"{backup} has no {MANIFEST}, which gear backup writes last: it was stopped before its end, or "
            "this is no backup; take another one"
        ) from None
    return decode_manifest(raw, str(backup))
