"""The ledger opened for reading, while ingest may be writing it.

Stands under the read side of the log. Guarantees: nothing is written and ingest is never blocked; what SQLite
says is one sentence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from geartrain.errors import LedgerError
from geartrain_cloud.log.tables import LEDGER_FILE, check_version

_BUSY_TIMEOUT_S = 10.0


@contextmanager
def ledger_of(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the ledger of the log in `folder`, for one block; raises `LedgerError`."""
    # One connection a call: it costs a millisecond, survives forks and threads, and never holds a
    # snapshot open, which would keep ingest's write-ahead log from shrinking.
    path = folder / LEDGER_FILE
    if not path.is_file():
        raise LedgerError(f"there is no ledger in {folder}: start gear-ingest with that log folder first")
    try:
        with closing(_connect(folder)) as ledger:
            check_version(ledger, path)
            yield ledger
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from None


@contextmanager
def writable_ledger(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection in one durable transaction beside ingest's, committed at the end of the block.

    Raises `LedgerError`. It has no fencing term, so only what ingest does not keep in memory may be written.
    """
    path = folder / LEDGER_FILE
    with ledger_of(folder):
        pass  # there is one, of our version
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as ledger:
            ledger.execute("PRAGMA synchronous = FULL")
            ledger.execute("BEGIN IMMEDIATE")
            yield ledger
            ledger.execute("COMMIT")
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be written: {error}") from None


def has_tables(folder: Path) -> bool:
    """Whether the ledger's first transaction was made: before it there is a file without tables."""
    with closing(_connect(folder)) as ledger:
        return bool(ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _connect(folder: Path) -> sqlite3.Connection:
    path = (folder / LEDGER_FILE).absolute()
    ledger = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    ledger.execute("PRAGMA query_only = ON")
    return ledger
