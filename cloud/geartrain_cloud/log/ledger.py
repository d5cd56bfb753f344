"""The ledger in SQLite: the manifest of the log, and the memory of every device's place in it.

Stands under ingest, which commits to it after the segments are durable and before it sends any ack.
Guarantees: a commit is one durable transaction (write-ahead log, synchronous=FULL) or nothing; one with an
old fencing term changes nothing. All SQL runs on one worker thread.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from geartrain.errors import LedgerError
from geartrain.ports import AckCursor, ClosedEpoch, Entry, LedgerChange, StoredSchema
from geartrain_cloud.log.tables import (
    AT_PLACE,
    CLOSED_KEPT,
    CREATE,
    DIGESTS_KEPT,
    INSERT_ENTRY,
    LEDGER_FILE,
    REPLACE_CURSOR,
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_EXCLUDED,
    VERSION,
    check_version,
    cursor_row,
    entry_row,
    read_cursor,
    read_entry,
)

T = TypeVar("T")

_BUSY_TIMEOUT_S = 10.0


class SqliteLedger:
    """`LedgerStore` in the file `ledger.sqlite` of the log's folder, mode 0600."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the log's; made by `open` where it is missing."""
        self.path = folder / LEDGER_FILE
        self._worker = ThreadPoolExecutor(1, "ledger")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> int:
        """Open or create, take the fencing term (one above the last) and return it."""
        return await self._run(self._open)

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Write in one durable transaction; raises `LedgerError` when `term` is no longer the newest."""
        await self._run(lambda: self._commit(term, change))

    async def resubmit_batch(self, term: int, change: LedgerChange, number: int) -> None:
        """`commit`, and mark the quarantined batch `number` as resubmitted under `term`."""
        statement = "UPDATE quarantine SET resubmitted = ? WHERE number = ? AND resubmitted = 0"
        await self._run(lambda: self._commit(term, change, (statement, (term, number))))

    async def resubmit_letter(
        self, term: int, change: LedgerChange, place: tuple[str, int, int, int]
    ) -> None:
        """`commit`, and mark the dead letter at (flow, partition, entry, row) as resubmitted."""
        statement = "INSERT INTO resubmitted_letters VALUES (?, ?, ?, ?)"
        await self._run(lambda: self._commit(term, change, (statement, place)))

    async def cursors(self) -> list[AckCursor]:
        """Every device's cursor."""
        rows = await self._rows(SELECT_CURSORS + "ORDER BY flow, device")
        return [read_cursor(row) for row in rows]

    async def closed_epochs(self) -> list[ClosedEpoch]:
        """The epochs that a later one has replaced, by device, flow and ordinal: the last 1,000 of each."""
        query = "SELECT device, flow, epoch, ordinal, seq, digest FROM closed_epochs "
        return [ClosedEpoch(*row) for row in await self._rows(query + "ORDER BY device, flow, ordinal")]

    async def schemas(self) -> list[StoredSchema]:
        """Every schema announced so far, in the order they were stored."""
        rows = await self._rows("SELECT flow, channel, schema_id, text FROM schemas ORDER BY number")
        return [StoredSchema(*row) for row in rows]

    async def last_entries(self) -> list[Entry]:
        """The newest entry of every (flow, channel, partition)."""
        places = await self._rows(
            "SELECT flow, channel, partition, max(number) FROM entries GROUP BY flow, channel, partition"
        )
        query = SELECT_ENTRIES + AT_PLACE + "AND number = ?"
        return [read_entry((await self._rows(query, place))[0]) for place in places]

    async def devices(self) -> list[tuple[str, str, str]]:
        """(flow, channel, device) of every ASSIGNED entry."""
        return await self._rows(
            "SELECT flow, channel, device FROM entries WHERE kind = 'assigned' ORDER BY flow, channel, device"
        )

    async def excluded(self) -> list[tuple[str, str, str]]:
        """(flow, channel, device) of every device whose newest EXCLUDED or READMITTED entry is EXCLUDED."""
        return await self._rows(SELECT_EXCLUDED)

    async def segments(self) -> set[str]:
        """Every file name that an entry names."""
        return {
            name for (name,) in await self._rows("SELECT DISTINCT segment FROM entries WHERE segment <> ''")
        }

    async def digest_at(self, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
        """The running digest of an appended batch, or None where it is no longer remembered."""
        query = "SELECT digest FROM digests WHERE device = ? AND flow = ? AND epoch = ? AND seq = ?"
        rows = await self._rows(query, (device, flow, epoch, seq))
        return rows[0][0] if rows else None

    async def counters(self) -> Mapping[str, int]:
        """Totals by name."""
        return dict(await self._rows("SELECT name, total FROM counters"))

    async def close(self) -> None:
        """Release the ledger; a second call does nothing."""
        if self._connection is not None:
            await self._run(self._connection.close)
            self._connection = None
        self._worker.shutdown(wait=False)

    async def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return await self._run(lambda: self._opened().execute(query, values).fetchall())

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"the ledger {self.path} cannot be used: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"the ledger {self.path} is not open")
        return self._connection

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives its write-ahead log and shared memory the mode of this file.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with _transaction(connection):
                if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    _create(connection)
                check_version(connection, self.path)
                connection.execute("UPDATE fencing SET term = term + 1")
                (term,) = connection.execute("SELECT term FROM fencing").fetchone()
            _fsync_folder(self.path.parent)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return int(term)

    def _commit(
        self, term: int, change: LedgerChange, mark: tuple[str, tuple[Any, ...]] | None = None
    ) -> None:
        connection = self._opened()
        with _transaction(connection):
            (newest,) = connection.execute("SELECT term FROM fencing").fetchone()
            if newest != term:
                raise LedgerError(
                    f"another ingest has taken the ledger {self.path} (its term is {newest}, ours {term}): "
                    "run only one for each log"
                )
            _write(connection, change)
            if mark is not None and connection.execute(*mark).rowcount != 1:
                raise LedgerError("it was resubmitted before")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block; leave no trace when it, or the commit itself, raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    for statement in CREATE.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _write(connection: sqlite3.Connection, change: LedgerChange) -> None:
    connection.executemany(INSERT_ENTRY, [entry_row(entry) for entry in change.entries])
    connection.executemany(REPLACE_CURSOR, [cursor_row(cursor) for cursor in change.cursors])
    connection.executemany(
        "INSERT OR IGNORE INTO schemas (flow, channel, schema_id, text) VALUES (?, ?, ?, ?)",
        [(x.flow, x.channel, x.schema_id, x.text) for x in change.schemas],
    )
    connection.executemany(
        "INSERT INTO quarantine (device, flow, epoch, seq, count, reason, payload, acked) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (q.device, q.flow, q.epoch, q.seq, q.count, q.reason, q.payload, q.acked)
            for q in change.quarantined
        ],
    )
    connection.executemany(
        "INSERT INTO segments (name, size, digest, made_us) VALUES (?, ?, ?, ?)",
        [(s.name, s.size, s.digest, s.made_us) for s in change.segments],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO counters (name, total) VALUES (?, ?)", list(change.counters.items())
    )
    connection.executemany(
        "INSERT OR REPLACE INTO digests (device, flow, epoch, seq, digest) VALUES (?, ?, ?, ?, ?)",
        [(d.device, d.flow, d.epoch, d.seq, d.digest) for d in change.digests],
    )
    newest = {(d.device, d.flow, d.epoch): d.seq for d in change.digests}
    connection.executemany(
        "DELETE FROM digests WHERE device = ? AND flow = ? AND epoch = ? AND seq <= ?",
        [(*place, seq - DIGESTS_KEPT) for place, seq in newest.items()],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO closed_epochs (device, flow, epoch, ordinal, seq, digest) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [(c.device, c.flow, c.epoch, c.ordinal, c.seq, c.digest) for c in change.closed_epochs],
    )
    connection.executemany(
        "DELETE FROM closed_epochs WHERE device = ? AND flow = ? AND ordinal <= ?",
        [(c.device, c.flow, c.ordinal - CLOSED_KEPT) for c in change.closed_epochs],
    )
    # A batch of a closed epoch is refused before its digest is asked for.
    connection.executemany(
        "DELETE FROM digests WHERE device = ? AND flow = ? AND epoch = ?",
        [(c.device, c.flow, c.epoch) for c in change.closed_epochs],
    )


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
