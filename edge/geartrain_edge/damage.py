"""Damage: a gap in the place of a batch that the device's disk no longer has as it was committed.

Under the uplink. Guarantees: only what is damaged gives way, after a second look at the disk; the rows that
are lost are counted by channel and declared to ingest; the gap is durable before it is sent.
"""

from __future__ import annotations

from msgspec.structs import replace

from geartrain.ports import SpoolCommit
from geartrain_edge.gaps import by_channel, is_intact, replacement
from geartrain_edge.link import Link
from geartrain_edge.unbroken import unbroken


class Damage:
    """What puts gaps into the spool of one flow."""

    def __init__(self, link: Link) -> None:
        self._who, self._store, self._backlog = link.who, link.effects.store, link.backlog
        self._window, self._counters, self._alarm = link.window, link.counters, link.alarm

    async def declare(self, seq: int) -> bool:
        """Put a gap in the place of a batch that the disk has damaged; False where it is as it was.

        One that was acked meanwhile, and is there until the next trim, arrived before it was damaged.
        """
        return await unbroken(self._replace(seq))

    async def _replace(self, seq: int) -> bool:
        backlog = self._backlog
        async with backlog.lock:
            await self._window.forget()
            if seq <= self._window.acked:
                return True
            batch = await self._window.held(seq)
            if batch is None:
                return False
            first = batch.first_seq or batch.seq
            previous = backlog.acked_digest
            if first - 1 > self._window.acked:
                before = await self._window.held(first - 1)
                previous = b"" if before is None else before.digest
            if is_intact(previous, batch):
                return False
            gap = replacement(replace(self._who, epoch=backlog.epoch), batch)
            for channel, count in by_channel(batch.rows).items():
                self._counters.add(f"rows_damaged.{channel}", count)
            self._counters.add("batches_damaged")
            await self._store.commit(SpoolCommit(counters=self._counters.changes(), gaps=[gap]))
            backlog.replaced(batch.size - gap.size)
            self._window.rewind(first)
        self._alarm.ring(
            f"batch {seq} of device {self._who.device} was damaged on its disk: {batch.count} rows are lost "
            "and declared as dropped; look after that disk"
        )
        backlog.grown.set()
        return True
