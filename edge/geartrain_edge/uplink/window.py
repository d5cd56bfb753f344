"""The window: the unacked batches that were read from the spool, in memory.

The uplink uses it. Guarantees: the batches are in seq order from the oldest unacked one, and none is missing.
It holds at most `window` batches and `window_bytes`, except for one larger batch and the gaps that follow. It
never gives out a batch whose stored bytes differ from those that were committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from geartrain.errors import SpoolError
from geartrain.ports.buggify import buggify
from geartrain.ports.spool import SpooledBatch, SpoolStore
from geartrain_edge.spool.backlog import Backlog
from geartrain_edge.spool.gaps import is_intact

R = TypeVar("R")

_READ_MAX = 8
"""Batches of one read of the spool, so that a read takes little memory."""


class Window:
    """A view on the spool from `acked` on."""

    def __init__(self, store: SpoolStore, backlog: Backlog, batches_max: int, bytes_max: int) -> None:
        self._store, self._backlog = store, backlog
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._batches: deque[SpooledBatch] = deque()
        self._bytes = 0
        self._lock = asyncio.Lock()  # between an ack and the loading of more, which both await the store
        self.acked = backlog.acked_seq
        self.damaged_seq = 0
        """A batch whose stored bytes are not those that were committed, 0 while there is none."""

    async def after(self, seq: int, *, gap_only: bool = False) -> SpooledBatch | None:
        """The batch that follows on `seq`, or the gap that it lies in; None while there is none or no room.

        gap_only: None also where it is no gap.
        """
        async with self._lock:
            # More than once, where what was read had to be forgotten: it is less than what was sent.
            while not self._batches or self._batches[-1].seq <= seq:
                if not await self._load():
                    break
            found = next((batch for batch in self._batches if batch.seq > seq), None)
            return None if found is None or (gap_only and not found.first_seq) else found

    async def _load(self) -> bool:
        """Read a few more from the spool; False where there is no more, or no room."""
        end = self._batches[-1].seq if self._batches else self.acked
        room = self._batches_max - sum(not batch.first_seq for batch in self._batches)
        if end >= self._backlog.last_seq:
            return False
        if self._batches and buggify("window of one", 0.5):
            room = 0
        loaded = False
        for batch in await self._store.read(end, min(max(room, 1), _READ_MAX)):
            # Where ingest stands within a gap, only the gap itself brings it on: no room may keep it back.
            if (room <= 0 or self._full()) and not batch.first_seq:
                break
            if batch.seq > self._backlog.last_seq:
                break  # the reading side has yet to note its commit: an ack for it would look false
            before = self._batches[-1].digest if self._batches else self._backlog.acked_digest
            if not is_intact(before, batch):
                self.damaged_seq = batch.seq
                return False
            self._batches.append(batch)
            self._bytes += batch.size
            room -= not batch.first_seq
            loaded = True
        return loaded

    async def forget(self) -> None:
        """Let go of what was read, because the spool holds something else now: it is read again."""
        async with self._lock:
            self._clear()

    async def renew(self, change: Callable[[], Awaitable[R]]) -> R:
        """Carry out a change of the spool that begins a new epoch, and stand before its first batch."""
        async with self._lock:
            done = await change()
            self._clear()
            self.acked = 0
            return done

    def _clear(self) -> None:
        self._batches.clear()
        self._bytes = self.damaged_seq = 0

    def _full(self) -> bool:
        return bool(self._batches) and self._bytes >= self._bytes_max

    async def held(self, seq: int) -> SpooledBatch | None:
        """The unacked batch `seq`, or the gap that stands for it; None where the spool holds neither."""
        for batch in self._batches:
            if batch.seq >= seq:
                return batch if (batch.first_seq or batch.seq) <= seq else None
        found = await self._store.read(seq - 1, 1)
        return found[0] if found and (found[0].first_seq or found[0].seq) <= seq else None

    async def gap_around(self, seq: int) -> SpooledBatch | None:
        """The gap that stands for batch `seq`, wherever the window ends; None where there is none now."""
        async with self._lock:
            found = await self.held(seq)
            if found is None or not found.first_seq or found.seq > self._backlog.last_seq:
                return None
            if not is_intact(b"", found):
                self.damaged_seq = found.seq
                return None
            return found

    async def ack(self, seq: int, digest: bytes = b"") -> int:
        """Let go of the batches up to `seq`, after which the running digest is `digest`; returns their
        bytes.
        """
        async with self._lock:
            freed = 0
            after = self._batches[-1].seq if self._batches else self.acked
            while after < seq:  # sent in a former life, and not loaded since
                found = await self._store.read(after, _READ_MAX)
                if not found:
                    raise SpoolError(f"the spool has lost batch {after + 1}, which is not acked")
                freed += sum(batch.size for batch in found if batch.seq <= seq)
                after = found[-1].seq
            while self._batches and self._batches[0].seq <= seq:
                size = self._batches.popleft().size
                self._bytes -= size
                freed += size
            self.acked, self._backlog.acked_digest = seq, digest
            return freed
