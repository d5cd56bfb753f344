"""The spool: the agent's durable store, one SQLite file.

Between the fragment and the uplink. What is committed here has happened; what is not committed has not.
Guarantees: one `commit` is one transaction. It is durable when it returns, even if the power fails (WAL,
synchronous=FULL). One thread uses the file, and nobody else can open it meanwhile. Its mode is 0600.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from geartrain.adapters.files import fsync_path
from geartrain.adapters.sqlite import Fault, open_to_write, transaction, translated
from geartrain.errors import SpoolError
from geartrain.ports.spool import (
    Rewrite,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolTip,
    StateSize,
    first_batches,
)
from geartrain.wire.digest import FIRST_DIGEST
from geartrain_edge.spool.format import (
    COLUMNS,
    LAYOUT,
    SETTINGS,
    SIZE,
    batch_of,
    create,
    image_of,
    row_of,
)
from geartrain_edge.spool.seal import Seal

R = TypeVar("R")

_BEGIN_ANEW = "move it away to begin a new one; what it held unsent is then lost"
_WORDS = {
    Fault.IN_USE: "is in use by another agent: stop that one, or give this one a state folder of its own",
    Fault.DAMAGED: f"is damaged ({{error}}): {_BEGIN_ANEW}",
    Fault.DISK_FULL: "cannot be written, for the disk is full: make room and start the agent again",
}
_BUSY_S = 2.0
_INSERT = f"INSERT INTO batches ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_RENEW = "UPDATE spool SET epoch = ?, last_seq = ?, last_digest = ?, acked_seq = 0, acked_digest = ?"
_SELECT = f"SELECT {COLUMNS} FROM batches WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608 - constants


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="spool")


class SqliteSpool:
    """`SpoolStore` over the file `path`, whose folder is made if need be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = _thread()
        self._database: sqlite3.Connection | None = None
        self._is_closed = False
        self._last_seq, self._seal = 0, Seal()
        self._kept: Mapping[str, StateSize] = {}

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """Open or create, again after `close`, too; raises `SpoolError` when it is of another device or flow,
        damaged, or in use.
        """
        if self._is_closed:
            self._thread, self._is_closed = _thread(), False
        return await self._run(lambda: self._open(device, flow, fresh_epoch))

    async def commit(self, change: SpoolCommit) -> None:
        """Write `change` in one durable transaction."""
        await self._run(lambda: self._commit(change))

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """Up to `limit` committed batches with seq > `after_seq`, in seq order."""
        return await self._run(lambda: self._read(after_seq, limit))

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` committed cells of a step, in the order of their keys; of `keys` where some are
        given.
        """
        return await self._run(lambda: self._cells(step, keys, limit))

    def kept(self) -> Mapping[str, StateSize]:
        """How much the last commit has left of each step's state."""
        return self._kept

    async def trim(self, through_seq: int) -> None:
        """Delete batches up to `through_seq` and remember it as acked, in one durable transaction."""
        await self._run(lambda: self._trim(through_seq))

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Begin a new epoch with what `rewrite` makes of each batch, in one durable transaction."""
        return await self._run(lambda: self._renew(epoch, rewrite, change))

    async def close(self) -> None:
        """Let go of the file, after whatever was begun."""
        try:
            await self._run(self._close)
        finally:
            self._thread.shutdown(wait=False)
            self._is_closed = True

    async def _run(self, work: Callable[[], R]) -> R:
        try:
            with translated(SpoolError, f"spool {self._path}", _WORDS):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SpoolError(f"spool {self._path} is damaged ({error}): {_BEGIN_ANEW}") from None

    def _open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        fresh = not self._path.exists()
        database = open_to_write(self._path, busy_s=_BUSY_S, one_thread=True, settings=SETTINGS)
        try:
            with transaction(database, "EXCLUSIVE"):  # fails now if another agent has it, not at a commit
                self._prepare(database, device, flow, fresh_epoch)
            # What a killed agent wrote may be in the page cache only: SQLite takes it as committed, and power
            # loss would take it back after it was sent and acked. A checkpoint makes it durable.
            if database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise SpoolError(f"spool {self._path}: what it holds cannot be made durable: free its disk")
            image = image_of(database)
        except BaseException:
            database.close()
            raise
        if fresh:
            fsync_path(self._path.parent)
            fsync_path(self._path.parent.parent)
        self._database, self._last_seq, self._kept = database, image.last_seq, self._seal.kept
        return image

    def _prepare(self, database: sqlite3.Connection, device: str, flow: str, fresh_epoch: bytes) -> None:
        def new(database: sqlite3.Connection) -> None:
            create(database, device, flow, fresh_epoch)
            self._seal.load(database)
            self._seal.write(database)

        if LAYOUT.prepare(database, f"the spool {self._path}", new):
            return
        if not self._seal.load(database):
            raise SpoolError(f"spool {self._path} is damaged (its seal does not fit): {_BEGIN_ANEW}")
        owner = database.execute("SELECT device, flow FROM spool").fetchone()
        if owner != (device, flow):
            raise SpoolError(
                f"spool {self._path} belongs to device {owner[0]!r} and flow {owner[1]!r}, not to {device!r} "
                f"and {flow!r}: give this agent a state folder of its own"
            )
        if database.execute("UPDATE spool SET epoch = ? WHERE last_seq = 0", (fresh_epoch,)).rowcount:
            self._seal.write(database)

    def _commit(self, change: SpoolCommit) -> None:
        database, last_seq = self._opened(), self._last_seq
        for batch in change.batches:
            last_seq += 1
            if batch.seq != last_seq:
                raise SpoolError(f"spool {self._path}: batch {batch.seq} does not follow on {last_seq - 1}")
        with self._transaction(database):
            if change.batches:
                database.executemany(_INSERT, map(row_of, change.batches))
                tip = (last_seq, change.batches[-1].digest)
                database.execute("UPDATE spool SET last_seq = ?, last_digest = ?", tip)
            for gap in change.gaps:
                self._put_gap(database, gap, last_seq)
            self._write_rest(database, change)
        self._last_seq = last_seq

    def _put_gap(self, database: sqlite3.Connection, gap: SpooledBatch, last_seq: int) -> None:
        if not 1 <= gap.first_seq <= gap.seq <= last_seq:
            raise SpoolError(
                f"spool {self._path}: a gap from {gap.first_seq} to {gap.seq} leaves what is held"
            )
        held = (gap.first_seq, gap.seq)
        if database.execute("DELETE FROM batches WHERE seq BETWEEN ? AND ?", held).rowcount:
            database.execute(_INSERT, row_of(gap))

    def _read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        found = self._opened().execute(_SELECT, (after_seq, limit))
        return [batch_of(row) for row in found]

    def _cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        if keys is None:
            query = "SELECT key, value FROM state WHERE step = ? ORDER BY key LIMIT ?"
            return self._opened().execute(query, (step, limit)).fetchall()
        query = "SELECT key, value FROM state WHERE step = ? AND key = ?"
        found = [self._opened().execute(query, (step, key)).fetchone() for key in sorted(keys)]
        return [row for row in found if row is not None][:limit]

    def _trim(self, through_seq: int) -> None:
        if through_seq > self._last_seq:
            raise SpoolError(
                f"spool {self._path}: cannot trim {through_seq}, its last batch is {self._last_seq}"
            )
        database = self._opened()
        with self._transaction(database):
            found = database.execute("SELECT digest FROM batches WHERE seq = ?", (through_seq,)).fetchone()
            acked = (through_seq, b"" if found is None else found[0], through_seq)
            database.execute("DELETE FROM batches WHERE seq <= ?", (through_seq,))
            database.execute("UPDATE spool SET acked_seq = ?, acked_digest = ? WHERE acked_seq < ?", acked)

    def _renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        database, digest, seq, after = self._opened(), FIRST_DIGEST, 0, 0
        made: deque[SpooledBatch | None] = deque(first_batches(rewrite))
        with self._transaction(database):
            # One at a time, because a spool may be larger than memory; one out for one in, so that no batch
            # ever takes a seq that is still held.
            while made:
                held = database.execute(_SELECT, (after, 1)).fetchone()
                if held is not None:
                    after = held[0]
                    database.execute("DELETE FROM batches WHERE seq = ?", (after,))
                    made.append(rewrite(batch_of(held)))
                batch = made.popleft()
                if batch is not None:
                    seq += 1
                    if batch.seq != seq:
                        raise SpoolError(
                            f"spool {self._path}: batch {batch.seq} does not follow on {seq - 1}"
                        )
                    database.execute(_INSERT, row_of(batch))
                    digest = batch.digest
            database.execute(_RENEW, (epoch, seq, digest, FIRST_DIGEST))
            self._write_rest(database, change)
            (spooled_bytes,) = database.execute(f"SELECT {SIZE} FROM batches").fetchone()  # noqa: S608
        self._last_seq = seq
        return SpoolTip(seq, digest, spooled_bytes)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise SpoolError(f"spool {self._path} is not open")
        return self._database

    @contextmanager
    def _transaction(self, database: sqlite3.Connection) -> Iterator[None]:
        """All or nothing of the statements in the block, and the seal over what they leave."""
        sealed = self._seal.rest, self._seal.kept
        try:
            with transaction(database):
                yield
                self._seal.write(database)
            self._kept = self._seal.kept
        except BaseException:
            self._seal.rest, self._seal.kept = sealed
            raise

    def _write_rest(self, database: sqlite3.Connection, change: SpoolCommit) -> None:
        """All of a commit but its batches."""
        positions = [
            (*split, at.position, at.max_time, int(at.ended)) for split, at in change.positions.items()
        ]
        kept = [(*key, value) for key, value in change.state.items() if value is not None]
        deleted = [key for key, value in change.state.items() if value is None]
        counters = list(change.counters.items())
        self._seal.change(database, "positions", change.positions, positions)
        self._seal.change(database, "state", change.state, kept)
        self._seal.change(database, "counters", [(name,) for name, _ in counters], counters)
        database.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)", positions)
        database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", kept)
        database.executemany("DELETE FROM state WHERE step = ? AND key = ?", deleted)
        database.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters)
