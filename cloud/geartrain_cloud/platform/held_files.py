"""Who needs the files of a state folder to stay: what copies them and what erases from them, never both.

Between backups and the erasing of what a device sent. Guarantees: one of them works at a time, and the lock
ends with its process. What erases leaves no link to a former file that a killed backup has held.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from geartrain.adapters.file_lock import is_held, locked
from geartrain.errors import GeartrainError
from geartrain_cloud.errors import StateError

FROZEN = "backup"
"""In the state folder: links to the files of a moment, while a backup is made."""
LOCK_FILE = "backup.lock"


def held_files(state: Path, error: type[GeartrainError]) -> AbstractContextManager[None]:
    """Have the files of a state folder to oneself, but for who writes new ones; raises `error`."""
    return locked(
        state / LOCK_FILE,
        error,
        unusable=f"the state folder {state} cannot be used",
        taken=f"a backup of {state} is being made, or a device's rows are being erased: wait for it to end",
    )


@contextmanager
def erasable_files(state: Path) -> Iterator[None]:
    """The same for what erases; raises `StateError` while a backup is made, and `OSError`."""
    with held_files(state, StateError):
        if (state / FROZEN).exists():
            shutil.rmtree(state / FROZEN)
        yield


def are_held(state: Path) -> bool:
    """Whether somebody copies or erases now; raises `OSError`."""
    return is_held(state / LOCK_FILE)
