"""The batches that are sent and not acked, or about to be: a bounded piece of the spool in memory.

Under the uplink. Guarantees: strictly in seq order and without a gap from the oldest unacked batch; at most
`window` batches and, but for a single larger one, `window_bytes`.
"""

from __future__ import annotations

import asyncio
from collections import deque

from geartrain.errors import SpoolError
from geartrain.ports.spool import SpooledBatch, SpoolStore
from geartrain_edge.backlog import Backlog

_READ_MAX = 8
"""Batches of one read of the spool, so that a read takes little memory."""


class Window:
    """A view on the spool from `acked` on, and how far it has been sent."""

    def __init__(self, store: SpoolStore, backlog: Backlog, batches_max: int, bytes_max: int) -> None:
        self._store, self._backlog = store, backlog
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._batches: deque[SpooledBatch] = deque()
        self._bytes = 0
        self._lock = asyncio.Lock()  # between an ack and the loading of more, which both await the store
        self.acked = backlog.acked_seq
        self.sent = backlog.acked_seq

    @property
    def waiting(self) -> bool:
        """Whether something was sent that is not acked."""
        return self.sent > self.acked

    async def next(self) -> SpooledBatch | None:
        """The next batch to send, None while there is none or no room for one."""
        async with self._lock:
            if self.sent - self.acked >= len(self._batches):
                await self._load()
            index = self.sent - self.acked  # a NACK may have set it back meanwhile
            return self._batches[index] if index < len(self._batches) else None

    async def _load(self) -> None:
        end = self.acked + len(self._batches)
        room = self._batches_max - len(self._batches)
        if end >= self._backlog.last_seq or room <= 0 or self._full():
            return
        for batch in await self._store.read(end, min(room, _READ_MAX)):
            if self._full() or batch.seq > self._backlog.last_seq:
                return  # the reading side has yet to note its commit: an ack for it would look false
            self._batches.append(batch)
            self._bytes += batch.size

    def _full(self) -> bool:
        return bool(self._batches) and self._bytes >= self._bytes_max

    def rewind(self, seq: int) -> bool:
        """Send again from `seq` on, or from the oldest unacked; False where that has not been sent yet."""
        target = max(seq - 1, self.acked)
        if target >= self.sent:
            return False
        self.sent = target
        return True

    async def digest_at(self, seq: int) -> bytes | None:
        """The running digest after an unacked batch; None where the spool does not hold it."""
        index = seq - self.acked - 1
        if 0 <= index < len(self._batches):
            return self._batches[index].digest
        found = await self._store.read(seq - 1, 1)
        return found[0].digest if found and found[0].seq == seq else None

    async def ack(self, seq: int) -> int:
        """Let go of the batches up to `seq`; returns their bytes."""
        async with self._lock:
            freed = 0
            after = self.acked + len(self._batches)
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
            self.acked = seq
            self.sent = max(self.sent, seq)
            return freed
