"""The file of an outbox: its tables, and how it is opened. docs/data_files.md describes each byte.

Under the writer, which is a store of Spark's micro-batches, and the sender, each in a process of its own.
Guarantees: a transaction is durable when it returns. What a killed process wrote is made durable before any
of it is used. The file has mode 0600.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.wire.digest import FIRST_DIGEST
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.downlink.store import Lane, OutBatch

LAYOUT = SqliteLayout(b"GTob", 1, OutboxError, "give the outbox another path")
BUSY_S = 30.0
"""How long a write waits for whoever else writes the file, where nothing else is said."""
_TABLES = """
CREATE TABLE outbox (one INTEGER PRIMARY KEY CHECK (one = 1), flow TEXT NOT NULL);
CREATE TABLE queries (
    query TEXT PRIMARY KEY, checkpoint TEXT NOT NULL, batch_id INTEGER NOT NULL, positions TEXT NOT NULL
);
CREATE TABLE watermarks (channel TEXT PRIMARY KEY, time INTEGER NOT NULL);
CREATE TABLE lanes (
    device TEXT PRIMARY KEY, epoch BLOB NOT NULL, ordinal INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, last_digest BLOB NOT NULL,
    acked_seq INTEGER NOT NULL, acked_digest BLOB NOT NULL,
    held_bytes INTEGER NOT NULL, told TEXT NOT NULL
);
CREATE TABLE batches (
    device TEXT NOT NULL, seq INTEGER NOT NULL,
    header BLOB NOT NULL, body BLOB NOT NULL, digest BLOB NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (device, seq)
) WITHOUT ROWID;
CREATE TABLE returned (
    query TEXT NOT NULL, batch_id INTEGER NOT NULL, channel TEXT NOT NULL, reason TEXT NOT NULL,
    packed BLOB NOT NULL, code TEXT NOT NULL
);
CREATE TABLE counters (name TEXT PRIMARY KEY, total INTEGER NOT NULL);
"""
LANE = "device, epoch, ordinal, last_seq, last_digest, acked_seq, acked_digest"
BATCH = "seq, header, body, digest, count"
INSERT_BATCH = "INSERT INTO batches (device, seq, header, body, digest, count) VALUES (?, ?, ?, ?, ?, ?)"


def open_outbox(path: Path, flow: str, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Open or create the outbox of `flow`; may be used from any thread, by one at a time.

    Raises `OutboxError`.
    """
    with outbox_errors(path):
        database = open_to_write(path, busy_s=busy_s)
        try:
            with transaction(database):
                _prepare(database, path, flow)
            # What a killed process wrote may be in the page cache only, where power loss would take it back
            # after it was sent. Another process that reads it keeps the WAL from being cut, not from a sync.
            database.execute("PRAGMA wal_checkpoint(FULL)")
        except BaseException:
            database.close()
            raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, flow: str) -> None:
    def create(database: sqlite3.Connection) -> None:
        for statement in filter(str.strip, _TABLES.split(";")):
            database.execute(statement)
        database.execute("INSERT INTO outbox VALUES (1, ?)", (flow,))

    LAYOUT.prepare(database, f"the outbox {path}", create)
    (owner,) = database.execute("SELECT flow FROM outbox").fetchone()
    if owner != flow:
        raise OutboxError(f"the outbox {path} is of flow {owner!r}, not of {flow!r}: give each its own")


def outbox_errors(path: Path) -> AbstractContextManager[None]:
    """Have what SQLite and the system say in a block be an `OutboxError` of one sentence."""
    return translated(OutboxError, f"the outbox {path}")


def lane_of(database: sqlite3.Connection, device: str) -> Lane | None:
    """The lane of a device, None where nothing was ever written for it."""
    row = database.execute(f"SELECT {LANE} FROM lanes WHERE device = ?", (device,)).fetchone()  # noqa: S608
    return None if row is None else Lane(*row)


def new_lane(device: str, epoch: bytes, ordinal: int = 1) -> Lane:
    """The lane of a device to which nothing was ever sent in this epoch."""
    return Lane(device, epoch, ordinal, 0, FIRST_DIGEST, 0, FIRST_DIGEST)


def batches_after(database: sqlite3.Connection, device: str, after_seq: int, limit: int) -> list[OutBatch]:
    """Up to `limit` batches of a device behind a seq, in order."""
    query = f"SELECT {BATCH} FROM batches WHERE device = ? AND seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
    return [OutBatch(*row) for row in database.execute(query, (device, after_seq, limit))]
