"""Who writes the ledger: its file opened for writing, its partitions taken under a term, the term checked.

Under `geartrain_cloud.log.ledger`, on its worker thread; the first and the last word of each of its
transactions. Guarantees: a ledger is made and taken in one durable transaction (write-ahead log,
synchronous=FULL) or not at all; of two that have taken a partition only the later one can commit; a
transaction that fails leaves no trace.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from geartrain.adapters.files import fsync_path
from geartrain.adapters.sqlite import open_to_read, open_to_write, transaction
from geartrain.errors import ConfigError, FencedError
from geartrain_cloud.log.opening import BUSY_S
from geartrain_cloud.log.rows import put_terms, put_totals, read_terms, read_totals
from geartrain_cloud.log.tables import CREATE, VERSION, check_version


def take_ledger(path: Path, partitions: int, owned: Sequence[int]) -> tuple[sqlite3.Connection, int]:
    """Open or create the ledger at `path`, take the partitions `owned`; the connection and the fencing term.

    Raises `ConfigError` for another number of partitions than the ledger was made with.
    """
    connection = open_to_write(path, busy_s=BUSY_S)
    try:
        with transaction(connection):
            is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_new:
                _create(connection, partitions)
            check_version(connection, path)
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
        check_version(found, path)
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
    connection.execute(f"PRAGMA user_version = {VERSION}")


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
