"""Opening the log and its ledger: who holds the log, who reads the ledger, and who writes it.

Under the read side of the log, under the transactions of `geartrain_cloud.log.ledger`, and around what
repairs a stopped log. Guarantees: a reader writes nothing and never blocks ingest. A ledger is made and taken
in one durable transaction or not at all. Of two ingests that have taken a partition, only the later one can
commit. No ingest runs on a log that is being repaired, and the lock for that ends with its process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from geartrain.adapters.file_lock import locked
from geartrain.adapters.files import fsync_path
from geartrain.adapters.sqlite import open_to_read, open_to_write, transaction, translated
from geartrain.errors import ConfigError, FencedError, LedgerError
from geartrain_cloud.log.rows import put_terms, put_totals, read_terms, read_totals
from geartrain_cloud.log.tables import CREATE, LAYOUT, LEDGER_FILE

BUSY_S = 10.0
"""Seconds that a statement waits for whoever else writes the ledger."""
LOCK_FILE = "lock"
"""In the log's folder: ingests share it, and what repairs a stopped log holds it alone."""


# Who may hold the log


@contextmanager
def shared_log(folder: Path) -> Iterator[None]:
    """Hold the log together with other ingests; raises `LedgerError` while it is being repaired."""
    with _locked(folder, "another program is writing to it: wait for it to end", is_shared=True):
        yield


@contextmanager
def stopped_log(
    folder: Path, why_not: str = "gear-ingest is running on it: stop it, resubmit, and start it again"
) -> Iterator[None]:
    """Hold the log alone; raises `LedgerError` while an ingest runs, which ends in `why_not`."""
    with _locked(folder, why_not, is_shared=False):
        yield


def _locked(folder: Path, why_not: str, *, is_shared: bool) -> AbstractContextManager[None]:
    return locked(
        folder / LOCK_FILE,
        LedgerError,
        unusable=f"the log {folder} cannot be used",
        taken=f"the log {folder} is in use: {why_not}",
        is_shared=is_shared,
    )


# Who reads the ledger


@contextmanager
def ledger_of(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the ledger of the log in `folder`, for one block; raises `LedgerError`."""
    # One connection a call: it costs a millisecond, survives forks and threads, and never holds a
    # snapshot open, which would keep ingest's write-ahead log from shrinking.
    path = folder / LEDGER_FILE
    missing = f"there is no ledger in {folder}: start gear-ingest with that log folder first"
    if not path.is_file():
        raise LedgerError(missing)
    with translated(LedgerError, f"the ledger {path}"), closing(open_to_read(path, busy_s=BUSY_S)) as ledger:
        if not LAYOUT.is_made(ledger, f"the ledger {path}"):
            raise LedgerError(missing)
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
    path = folder / LEDGER_FILE
    with closing(open_to_read(path, busy_s=BUSY_S)) as ledger:
        return LAYOUT.is_made(ledger, f"the ledger {path}")


# Who writes it as an ingest


def take_ledger(path: Path, partitions: int, owned: Sequence[int]) -> tuple[sqlite3.Connection, int]:
    """Open or create the ledger at `path`, take the partitions `owned`; the connection and the fencing term.

    Raises `ConfigError` for another number of partitions than the ledger was made with.
    """
    connection = open_to_write(path, busy_s=BUSY_S)
    try:
        with transaction(connection):
            is_new = LAYOUT.prepare(connection, f"the ledger {path}", lambda one: _create(one, partitions))
            term = _take(connection, partitions, owned)
        fsync_path(path.parent)
        if is_new:
            fsync_path(path.parent.parent)
    except BaseException:
        connection.close()
        raise
    return connection, term


def partitions_of(path: Path) -> int:
    """How many partitions an existing ledger was made with."""
    with closing(open_to_read(path, busy_s=BUSY_S)) as found:
        LAYOUT.is_made(found, f"the ledger {path}")
        return len(read_terms(found))


def check_term(connection: sqlite3.Connection, path: Path, owned: Sequence[int], term: int) -> None:
    """Raise `FencedError` when `term` is no longer the newest of one of the partitions `owned`."""
    for partition, newest in read_terms(connection).items():
        if newest != term and partition in owned:
            raise FencedError(
                f"another ingest has taken the ledger {path}, partition {partition} (its term is "
                f"{newest}, ours {term}): run only one for each partition of a log"
            )


def _create(connection: sqlite3.Connection, partitions: int) -> None:
    for statement in CREATE.split(";"):
        connection.execute(statement)
    put_terms(connection, dict.fromkeys(range(partitions), 0))


def _take(connection: sqlite3.Connection, partitions: int, owned: Sequence[int]) -> int:
    """Take partitions under a new term, and their counters together."""
    terms = read_terms(connection)
    if (count := len(terms)) != partitions:
        raise ConfigError(
            f"log.partitions: this log was made with {count} partitions, which is fixed for its life, and "
            f"cannot be read with {partitions}: set partitions = {count}, or begin with an empty log folder"
        )
    term = max(terms.values()) + 1
    put_terms(connection, dict.fromkeys(owned, term))
    sums: dict[str, int] = {}
    for name, scope, total in read_totals(connection):
        if scope in owned:
            sums[name] = sums.get(name, 0) + total
    connection.executemany("DELETE FROM counters WHERE scope = ?", [(p,) for p in owned])
    put_totals(connection, sums, min(owned))
    return term
