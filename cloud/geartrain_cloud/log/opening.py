"""The ledger opened for reading, while ingest may be writing it.

Stands under the read side of the log. Guarantees: nothing is written and ingest is never blocked; what SQLite
says is one sentence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from geartrain.adapters.sqlite import open_to_read, open_to_write, transaction, translated
from geartrain.errors import LedgerError
from geartrain_cloud.log.tables import LEDGER_FILE, check_version

BUSY_S = 10.0
"""Seconds that a statement waits for whoever else writes the ledger."""


@contextmanager
def ledger_of(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the ledger of the log in `folder`, for one block; raises `LedgerError`."""
    # One connection a call: it costs a millisecond, survives forks and threads, and never holds a
    # snapshot open, which would keep ingest's write-ahead log from shrinking.
    path = folder / LEDGER_FILE
    if not path.is_file():
        raise LedgerError(f"there is no ledger in {folder}: start gear-ingest with that log folder first")
    with translated(LedgerError, f"the ledger {path}"), closing(open_to_read(path, busy_s=BUSY_S)) as ledger:
        check_version(ledger, path)
        yield ledger


@contextmanager
def writable_ledger(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection in one durable transaction beside ingest's, committed at the end of the block.

    Raises `LedgerError`. It has no fencing term, so only what ingest does not keep in memory may be written.
    """
    path = folder / LEDGER_FILE
    with ledger_of(folder):
        pass  # there is one, of our version
    with (
        translated(LedgerError, f"the ledger {path}"),
        closing(open_to_write(path, busy_s=BUSY_S)) as ledger,
        transaction(ledger),
    ):
        yield ledger


def has_tables(folder: Path) -> bool:
    """Whether the ledger's first transaction was made: before it there is a file without tables."""
    with closing(open_to_read(folder / LEDGER_FILE, busy_s=BUSY_S)) as ledger:
        return bool(ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
