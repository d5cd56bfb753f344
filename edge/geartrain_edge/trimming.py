"""Trimming: what is acked leaves the spool, in one transaction for all acks that came since the one before.

Beside the uplink. Nothing waits for it but a full spool and an agent's end: where a crash has an ack
forgotten, its batches are sent again, which ingest knows. So it is done seldom, and its sync keeps no commit
back.
"""

from __future__ import annotations

import asyncio

from geartrain.ports.buggify import buggify
from geartrain_edge.link import Link


class Trimming:
    """The acks of one flow that the spool has yet to be told of."""

    def __init__(self, link: Link) -> None:
        self._effects, self._backlog, self._window = link.effects, link.backlog, link.window
        self._pause_s = link.settings.trim_ms / 1_000
        self._acked = asyncio.Event()
        self._freed_bytes = 0

    def acked(self, freed_bytes: int) -> None:
        """Note that the window moved on, by batches of so many bytes."""
        self._freed_bytes += freed_bytes
        self._acked.set()

    def forget(self) -> None:
        """A new epoch begins, in which nothing is acked."""
        self._freed_bytes = 0

    async def run(self) -> None:
        """Trim, forever; raises `SpoolError`."""
        while True:
            await self._acked.wait()
            self._acked.clear()
            if buggify("late trim", 0.1):
                await self._effects.clock.sleep(1)
            async with self._backlog.lock:
                seq, freed_bytes = self._window.acked, self._freed_bytes
                self._freed_bytes = 0
                if seq > self._backlog.acked_seq:  # else a new epoch has begun meanwhile
                    await self._effects.store.trim(seq)
                    self._backlog.trimmed(seq, freed_bytes)
            await self._effects.clock.sleep(self._pause_s)
