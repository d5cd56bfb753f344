"""The outbox as its sender uses it: `OutboxStore` over the SQLite file that the host writes to.

Between the outbox and the broker. Guarantees: each outbox has at most one sender. Every change is one durable
transaction, and the host cannot write during it. Only one thread of the sender touches the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from geartrain.adapters.file_lock import take_lock
from geartrain.adapters.sqlite import transaction
from geartrain.wire.digest import FIRST_DIGEST
from geartrain_cloud.downlink.errors import MissingOutboxError, OutboxError
from geartrain_cloud.downlink.outbox_file import (
    INSERT_BATCH,
    LANE,
    batches_after,
    lane_of,
    new_lane,
    open_outbox,
    outbox_errors,
)
from geartrain_cloud.downlink.sealing import rewriter
from geartrain_cloud.downlink.store import Lane, OutBatch

R = TypeVar("R")

_SET_LANE = (
    "UPDATE lanes SET epoch = ?, ordinal = ?, last_seq = ?, last_digest = ?, acked_seq = ?, acked_digest = ?"
    ", held_bytes = (SELECT coalesce(sum(length(header) + length(body)), 0) FROM batches WHERE device = ?) "
    "WHERE device = ?"
)


class SqliteOutbox:
    """The file at `path`."""

    def __init__(self, path: Path, flow: str) -> None:
        self._path, self._flow = path, flow
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")
        self._database: sqlite3.Connection | None = None
        self._lock, self._file = -1, 0
        self._version = -1

    async def open(self) -> None:
        """Open it; raises `OutboxError`, of which `MissingOutboxError` where there is none."""
        await self._run(self._open)

    def _open(self) -> None:
        if not self._path.is_file():
            raise MissingOutboxError(f"there is no outbox {self._path} yet: Spark makes it")
        self._lock = _only_sender(self._path)
        self._database = open_outbox(self._path, self._flow)
        self._file = self._path.stat().st_ino

    async def changed(self) -> Sequence[Lane]:
        """The lanes with something to send, where the host has written since the last call, else none."""
        return await self._run(self._changed)

    def _changed(self) -> list[Lane]:
        database = self._opened()
        if self._path.stat().st_ino != self._file:
            raise OutboxError(f"the outbox {self._path} was put in the place of the one that was sent")
        (version,) = database.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return []
        self._version = version
        rows = database.execute(f"SELECT {LANE} FROM lanes WHERE last_seq > acked_seq ORDER BY device")  # noqa: S608
        return [Lane(*row) for row in rows]

    async def read(self, device: str, after_seq: int, limit: int) -> Sequence[OutBatch]:
        """Up to `limit` batches behind a seq, in order."""
        return await self._run(lambda: batches_after(self._opened(), device, after_seq, limit))

    async def replace(self, device: str, batch: OutBatch) -> None:
        """Have a gap stand for the batch of its seq."""

        def work() -> None:
            values = (batch.header, batch.body, batch.count, device, batch.seq)
            with transaction(self._opened()):
                self._opened().execute(
                    "UPDATE batches SET header = ?, body = ?, count = ? WHERE device = ? AND seq = ?", values
                )

        await self._run(work)

    async def trim(self, device: str, epoch: bytes, through_seq: int, digest: bytes) -> None:
        """Let go of the batches up to a seq."""

        def work() -> None:
            database = self._opened()
            with transaction(database):
                lane = self._lane(device)
                if lane.epoch != epoch or through_seq <= lane.acked_seq:
                    return
                database.execute("DELETE FROM batches WHERE device = ? AND seq <= ?", (device, through_seq))
                _set(
                    database,
                    device,
                    (lane.epoch, lane.ordinal, lane.last_seq, lane.last_digest),
                    (through_seq, digest),
                )

        await self._run(work)

    async def announce(self, device: str, ordinal: int) -> Lane:
        """Give the epoch of a device another ordinal."""

        def work() -> Lane:
            with transaction(self._opened()):
                self._opened().execute("UPDATE lanes SET ordinal = ? WHERE device = ?", (ordinal, device))
                return self._lane(device)

        return await self._run(work)

    async def renew(self, device: str, epoch: bytes, ordinal: int) -> Lane:
        """Begin a new epoch with all that is not acked, numbered from 1."""
        return await self._run(lambda: self._renew(device, epoch, ordinal))

    def _renew(self, device: str, epoch: bytes, ordinal: int) -> Lane:
        database = self._opened()
        with transaction(database):
            old = self._lane(device)
            rewrite, before, at = rewriter(self._flow, new_lane(device, epoch, ordinal)), old.acked_digest, 0
            after, digest = old.acked_seq, FIRST_DIGEST
            # One at a time, because they may be more than memory holds. None ever takes a seq that is held.
            while found := batches_after(database, device, after, 1):
                made = rewrite(found[0], before)
                before, after = found[0].digest, found[0].seq
                database.execute("DELETE FROM batches WHERE device = ? AND seq = ?", (device, after))
                values = (device, made.seq, made.header, made.body, made.digest, made.count)
                database.execute(INSERT_BATCH, values)
                at, digest = made.seq, made.digest
            _set(database, device, (epoch, ordinal, at, digest), (0, FIRST_DIGEST))
            return self._lane(device)

    async def count(self, counters: dict[str, int]) -> None:
        """Keep totals by name."""

        def work() -> None:
            with transaction(self._opened()):
                self._opened().executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters.items())

        await self._run(work)

    async def totals(self) -> dict[str, int]:
        """The totals that were kept."""
        return await self._run(
            lambda: dict(self._opened().execute("SELECT name, total FROM counters").fetchall())
        )

    async def close(self) -> None:
        """Let go of the file."""

        def work() -> None:
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

        try:
            await self._run(work)
        finally:
            self._thread.shutdown(wait=False)

    def _lane(self, device: str) -> Lane:
        lane = lane_of(self._opened(), device)
        if lane is None:
            raise OutboxError(f"the outbox {self._path} holds nothing for device {device!r} any more")
        return lane

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise OutboxError(f"the outbox {self._path} is not open")
        return self._database

    async def _run(self, work: Callable[[], R]) -> R:
        def translate() -> R:
            with outbox_errors(self._path):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, translate)


def _set(
    database: sqlite3.Connection, device: str, head: tuple[bytes, int, int, bytes], acked: tuple[int, bytes]
) -> None:
    database.execute(_SET_LANE, (*head, *acked, device, device))


def _only_sender(outbox: Path) -> int:
    """The lock of an outbox, which its descriptor holds; raises `OutboxError` where another sender has it."""
    return take_lock(
        outbox.with_name(f"{outbox.name}.lock"),
        OutboxError,
        unusable=f"the lock of the outbox {outbox} cannot be used",
        taken=f"another sender sends the outbox {outbox}: one is enough, end that one",
    )
