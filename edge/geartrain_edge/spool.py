"""The spool: the agent's durable store, one SQLite file.

Between the fragment and the uplink: what is committed here has happened, what is not never did.
Guarantees: one `commit` is one transaction, durable when it returns (WAL, synchronous=FULL: power loss is
covered too); one thread touches the file; nobody else can open it meanwhile; its mode is 0600.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from geartrain.errors import SpoolError
from geartrain.ports.spool import SplitProgress, SpoolCommit, SpooledBatch, SpoolImage
from geartrain.wire.digest import FIRST_DIGEST

R = TypeVar("R")

FORMAT = 1
"""Stored as `user_version`; a spool of a later format is refused."""

APPLICATION_ID = 0x47454152
"""`GEAR`: tells a spool from any other SQLite file."""

_SCHEMA = """
CREATE TABLE spool (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    device TEXT NOT NULL, flow TEXT NOT NULL, epoch BLOB NOT NULL,
    last_seq INTEGER NOT NULL, last_digest BLOB NOT NULL, acked_seq INTEGER NOT NULL
);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY,
    header BLOB NOT NULL, body BLOB NOT NULL, digest BLOB NOT NULL, count INTEGER NOT NULL
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

_SETTINGS = (
    # Before the first access to the WAL, so that the lock is held until close and no shared memory is used.
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=1",
    "PRAGMA journal_size_limit=8388608",
    "PRAGMA cache_size=-1024",
    "PRAGMA temp_store=MEMORY",
)


class SqliteSpool:
    """`SpoolStore` over the file `path`, whose folder is made if need be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._database: sqlite3.Connection | None = None
        self._last_seq = 0

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """Open or create; raises `SpoolError` when it is of another device or flow, damaged, or in use."""
        return await self._run(lambda: self._open(device, flow, fresh_epoch))

    async def commit(self, change: SpoolCommit) -> None:
        """Write `change` in one durable transaction."""
        await self._run(lambda: self._commit(change))

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """Up to `limit` committed batches with seq > `after_seq`, in seq order."""
        return await self._run(lambda: self._read(after_seq, limit))

    async def trim(self, through_seq: int) -> None:
        """Delete batches up to `through_seq` and remember it as acked, in one durable transaction."""
        await self._run(lambda: self._trim(through_seq))

    async def close(self) -> None:
        """Let go of the file, after whatever was begun."""
        try:
            await self._run(self._close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], R]) -> R:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise self._translated(error) from None
        except OSError as error:
            raise SpoolError(f"spool {self._path}: {error.strerror}") from None

    def _translated(self, error: sqlite3.Error) -> SpoolError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SpoolError(
                f"spool {self._path} is in use by another agent: stop that one, or give this one a state "
                "folder of its own"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return SpoolError(
                f"spool {self._path} is damaged ({error}): move it away to begin a new one; what it held "
                "unsent is then lost"
            )
        if code == sqlite3.SQLITE_FULL:
            return SpoolError(f"spool {self._path}: the disk is full: make room and start the agent again")
        return SpoolError(f"spool {self._path} cannot be used: {error}")

    def _open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        fresh = self._make_file()
        database = sqlite3.connect(self._path, timeout=2.0, isolation_level=None, check_same_thread=True)
        try:
            for setting in _SETTINGS:
                database.execute(setting)
            if database.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                raise SpoolError(f"spool {self._path}: SQLite keeps no WAL there: use a local file system")
            database.execute("BEGIN EXCLUSIVE")  # fails now if another agent has it, not at the first commit
            self._prepare(database, device, flow, fresh_epoch)
            database.execute("COMMIT")
            image = _image(database)
        except BaseException:
            database.close()
            raise
        if fresh:
            _fsync_folder(self._path.parent)
            _fsync_folder(self._path.parent.parent)
        self._database, self._last_seq = database, image.last_seq
        return image

    def _make_file(self) -> bool:
        """Whether the file is new. It is never readable by others, not even for a moment."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = not self._path.exists()
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._path.chmod(0o600)
        return fresh

    def _prepare(self, database: sqlite3.Connection, device: str, flow: str, fresh_epoch: bytes) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                database.execute(statement)
            row = (device, flow, fresh_epoch, FIRST_DIGEST)
            database.execute("INSERT INTO spool VALUES (1, ?, ?, ?, 0, ?, 0)", row)
            database.execute(f"PRAGMA application_id={APPLICATION_ID}")
            database.execute(f"PRAGMA user_version={FORMAT}")
            return
        if application != APPLICATION_ID:
            raise SpoolError(f"file {self._path} is no spool: give the agent another state folder")
        if version != FORMAT:
            raise SpoolError(
                f"spool {self._path} has format {version}, this agent writes {FORMAT}: use its own agent"
            )
        owner = database.execute("SELECT device, flow FROM spool").fetchone()
        if owner != (device, flow):
            raise SpoolError(
                f"spool {self._path} belongs to device {owner[0]!r} and flow {owner[1]!r}, not to {device!r} "
                f"and {flow!r}: give this agent a state folder of its own"
            )

    def _commit(self, change: SpoolCommit) -> None:
        database, last_seq = self._opened(), self._last_seq
        for batch in change.batches:
            last_seq += 1
            if batch.seq != last_seq:
                raise SpoolError(f"spool {self._path}: batch {batch.seq} does not follow on {last_seq - 1}")
        rows = [(b.seq, b.header, b.body, b.digest, b.count) for b in change.batches]
        positions = [(*split, at.position, at.max_time, at.ended) for split, at in change.positions.items()]
        kept = [(*key, value) for key, value in change.state.items() if value is not None]
        deleted = [key for key, value in change.state.items() if value is None]
        with _transaction(database):
            if rows:
                database.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", rows)
                tip = (last_seq, change.batches[-1].digest)
                database.execute("UPDATE spool SET last_seq = ?, last_digest = ?", tip)
            database.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)", positions)
            database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", kept)
            database.executemany("DELETE FROM state WHERE step = ? AND key = ?", deleted)
            counters = list(change.counters.items())
            database.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters)
        self._last_seq = last_seq

    def _read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        query = "SELECT seq, header, body, digest, count FROM batches WHERE seq > ? ORDER BY seq LIMIT ?"
        return [SpooledBatch(*row) for row in self._opened().execute(query, (after_seq, limit))]

    def _trim(self, through_seq: int) -> None:
        if through_seq > self._last_seq:
            raise SpoolError(
                f"spool {self._path}: cannot trim {through_seq}, its last batch is {self._last_seq}"
            )
        database = self._opened()
        with _transaction(database):
            database.execute("DELETE FROM batches WHERE seq <= ?", (through_seq,))
            database.execute("UPDATE spool SET acked_seq = max(acked_seq, ?)", (through_seq,))

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise SpoolError(f"spool {self._path} is not open")
        return self._database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of the statements in the block."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _image(database: sqlite3.Connection) -> SpoolImage:
    query = "SELECT epoch, last_seq, acked_seq, last_digest FROM spool"
    epoch, last_seq, acked_seq, digest = database.execute(query).fetchone()
    sizes = "SELECT coalesce(sum(length(header) + length(body)), 0) FROM batches"
    (spooled_bytes,) = database.execute(sizes).fetchone()
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
    )


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
