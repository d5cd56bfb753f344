"""The format of the spool's file: its tables, its settings, and how a batch is kept in a row.

`geartrain_edge.spool.spool` uses it. Guarantees: a file is made inside the transaction that opens it, so it
has all of its tables or none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from geartrain.adapters.layouts import SqliteLayout
from geartrain.errors import SpoolError
from geartrain.ports.spool import SplitProgress, SpooledBatch, SpoolImage
from geartrain.wire.digest import FIRST_DIGEST
from geartrain_edge.spool.seal import checksum

LAYOUT = SqliteLayout(b"GTsp", 1, SpoolError, "give the device's agent an empty state folder")

_TABLES = """
CREATE TABLE spool (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    device TEXT NOT NULL, flow TEXT NOT NULL, epoch BLOB NOT NULL,
    last_seq INTEGER NOT NULL, last_digest BLOB NOT NULL, acked_seq INTEGER NOT NULL,
    acked_digest BLOB NOT NULL DEFAULT x'', seal BLOB NOT NULL DEFAULT x''
);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY,
    header BLOB NOT NULL, body BLOB NOT NULL, digest BLOB NOT NULL, count INTEGER NOT NULL,
    rows BLOB NOT NULL DEFAULT x'5b5d', first_seq INTEGER NOT NULL DEFAULT 0, seal BLOB NOT NULL DEFAULT x'',
    mark BLOB NOT NULL DEFAULT x''
);
CREATE TABLE positions (
    step TEXT NOT NULL, split TEXT NOT NULL,
    position INTEGER NOT NULL, max_time INTEGER NOT NULL, ended INTEGER NOT NULL,
    PRIMARY KEY (step, split)
) WITHOUT ROWID;
CREATE TABLE state (
    step TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (step, key)
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, total INTEGER NOT NULL) WITHOUT ROWID;
"""

SETTINGS = (
    # Before the first access to the WAL, so that the lock is held until close and no shared memory is used.
    "locking_mode = EXCLUSIVE",
    # A small commit changes five or six pages, and each of them is written twice. Of a new file only.
    "page_size = 1024",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 8388608",
    "cache_size = -1024",
    "temp_store = MEMORY",
)

COLUMNS = "seq, header, body, digest, count, rows, first_seq, seal, mark"
SIZE = "coalesce(sum(length(header) + length(body)), 0)"

_ROWS = msgspec.json.Decoder(tuple[tuple[int, str, int], ...])

Row = tuple[int, bytes, bytes, bytes, int, bytes, int, bytes, bytes]
_TYPES = [int, bytes, bytes, bytes, int, bytes, int, bytes, bytes]
"""SQLite gives back a value of any type from any column."""


def row_of(batch: SpooledBatch) -> Row:
    """A batch as its row, in the order of `COLUMNS`."""
    rows = msgspec.json.encode(batch.rows)
    beside = (batch.count, rows, batch.first_seq, batch.seal)
    mark = checksum((batch.seq, *beside))
    return (batch.seq, batch.header, batch.body, batch.digest, *beside, mark)


def batch_of(row: Row) -> SpooledBatch:
    """The batch in a row; raises `msgspec.DecodeError` when the file was damaged there.

    Damage to header, body or digest does not raise: these prove each other. Where they do not, a gap takes
    the batch's place.
    """
    seq, header, body, digest, count, rows, first_seq, seal, mark = row
    beside = (seq, count, rows, first_seq, seal)
    if mark != checksum(beside) or list(map(type, row)) != _TYPES:
        raise msgspec.DecodeError(f"batch {seq} is not as it was committed")
    return SpooledBatch(seq, header, body, digest, count, _ROWS.decode(rows), first_seq, seal)


def create(database: sqlite3.Connection, device: str, flow: str, epoch: bytes) -> None:
    """Make the tables of a new spool."""
    _run(database, _TABLES)
    database.execute(
        "INSERT INTO spool VALUES (1, ?, ?, ?, 0, ?, 0, ?, x'')",
        (device, flow, epoch, FIRST_DIGEST, FIRST_DIGEST),
    )


def image_of(database: sqlite3.Connection) -> SpoolImage:
    """All that a spool holds but for its batches."""
    query = "SELECT epoch, last_seq, acked_seq, last_digest, acked_digest FROM spool"
    epoch, last_seq, acked_seq, digest, acked_digest = database.execute(query).fetchone()
    (spooled_bytes,) = database.execute(f"SELECT {SIZE} FROM batches").fetchone()  # noqa: S608 - a constant
    positions = database.execute("SELECT step, split, position, max_time, ended FROM positions")
    state = database.execute("SELECT step, key, value FROM state")
    counters = database.execute("SELECT name, total FROM counters")
    return SpoolImage(
        epoch,
        last_seq,
        acked_seq,
        digest,
        spooled_bytes,
        {(step, split): SplitProgress(at, top, bool(ended)) for step, split, at, top, ended in positions},
        {(step, key): value for step, key, value in state},
        dict(counters.fetchall()),
        acked_digest,
    )


def _run(database: sqlite3.Connection, statements: str) -> None:
    each: Iterable[str] = filter(str.strip, statements.split(";"))
    for statement in each:
        database.execute(statement)
