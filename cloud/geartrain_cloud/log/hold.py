"""Who may write the log beside ingest: nobody, while an ingest runs.

A lock on the file `lock` of the log's folder: ingests share it (which of them may commit, the fencing term
decides), and what repairs a stopped log holds it alone. Guarantees: the lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geartrain.errors import LedgerError

LOCK_FILE = "lock"


@contextmanager
def shared_log(folder: Path) -> Iterator[None]:
    """Hold the log together with other ingests; raises `LedgerError` while it is being repaired."""
    with _locked(folder, fcntl.LOCK_SH, "another program is writing to it: wait for it to end"):
        yield


@contextmanager
def stopped_log(folder: Path) -> Iterator[None]:
    """Hold the log alone; raises `LedgerError` while an ingest runs."""
    with _locked(
        folder, fcntl.LOCK_EX, "gear-ingest is running on it: stop it, resubmit, and start it again"
    ):
        yield


@contextmanager
def _locked(folder: Path, how: int, why_not: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(f"the log {folder} cannot be used: {error.strerror or error}") from None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LedgerError(f"the log {folder} is in use: {why_not}") from None
    try:
        yield
    finally:
        os.close(descriptor)
