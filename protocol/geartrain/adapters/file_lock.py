"""Locks on files, by which one process at a time has a folder, a log or a port.

Around what must not be done twice at once. Guarantees: a lock ends with the last process that has it open,
however that ends, so that none is left behind. Its file is for nobody else to open (0600).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geartrain.adapters.files import make_private_folder
from geartrain.errors import GeartrainError


def open_lock(path: Path) -> int:
    """Open the file of a lock, made with the folders above it if need be; the descriptor, which holds nothing
    yet. Raises `OSError`.
    """
    make_private_folder(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, *, is_shared: bool = False) -> bool:
    """Take an open lock without waiting; whether it is held now. Raises `OSError` where locks do not work.

    is_shared: together with others who take it so.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether a process holds this lock now. One whose file is not there is free. Raises `OSError`."""
    if not path.exists():
        return False
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def take_lock(
    path: Path, error: type[GeartrainError], *, unusable: str, taken: str, is_shared: bool = False
) -> int:
    """Open a lock and take it.

    Args:
        path: its file.
        error: what is raised.
        unusable: the sentence for a file that cannot be used; the system's reason is put behind it.
        taken: the sentence for a lock that another process holds.
        is_shared: whether it is held together with others who take it so.

    Returns:
        The descriptor, which holds the lock until it is closed.

    Raises:
        error: with one of the two sentences.
    """
    descriptor = -1
    try:
        descriptor = open_lock(path)
        if try_lock(descriptor, is_shared=is_shared):
            return descriptor
    except OSError as problem:
        if descriptor >= 0:
            os.close(descriptor)
        raise error(f"{unusable}: {problem.strerror or problem}") from None
    os.close(descriptor)
    raise error(taken)


@contextmanager
def locked(
    path: Path, error: type[GeartrainError], *, unusable: str, taken: str, is_shared: bool = False
) -> Iterator[None]:
    """`take_lock` for one block."""
    descriptor = take_lock(path, error, unusable=unusable, taken=taken, is_shared=is_shared)
    try:
        yield
    finally:
        os.close(descriptor)
