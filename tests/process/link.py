"""One direction of one connection through the fault proxy: what waits for its time, and how fast it goes.

Under the proxy. Guarantees: bytes leave in the order of the times they are due, those due at once in the
order they came; at most `HELD_BYTES_MAX` wait, then `put` does.
"""

from __future__ import annotations

import asyncio
import heapq
from enum import StrEnum
from typing import Protocol

HELD_BYTES_MAX = 4 << 20
REORDER_S = 0.1
"""How long a packet that was taken out of its place waits for the next one, if none comes."""
_CHUNK = 512


class Direction(StrEnum):
    """Where a packet goes: UP to the broker, DOWN to the client."""

    UP = "up"
    DOWN = "down"


class Condition(Protocol):
    """How a direction is at the moment."""

    stalled: bool
    bytes_per_s: float
    latency_s: float
    changed: asyncio.Event


class Pipe:
    """Bytes on their way to `writer`."""

    def __init__(self, writer: asyncio.StreamWriter, condition: Condition) -> None:
        self._writer, self._condition = writer, condition
        self._heap: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._bytes = 0
        self._sending = False
        self._held: list[bytes] = []
        self._moved = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, data: bytes, delay_s: float = 0.0) -> None:
        """Send `data` after so long, and then what was held for it."""
        await self._room.wait()
        self._push(data, delay_s)
        self._release()

    def hold(self, data: bytes) -> None:
        """Send `data` behind what comes next, or after a moment."""
        self._held.append(data)
        asyncio.get_running_loop().call_later(REORDER_S, self._release)

    def _release(self) -> None:
        held, self._held = self._held, []
        for data in held:
            self._push(data, 0.0)

    def _push(self, data: bytes, delay_s: float) -> None:
        self._count += 1
        due_s = asyncio.get_running_loop().time() + self._condition.latency_s + delay_s
        heapq.heappush(self._heap, (due_s, self._count, data))
        self._bytes += len(data)
        if self._bytes >= HELD_BYTES_MAX:
            self._room.clear()
        self._moved.set()

    async def flush(self) -> None:
        """Return when nothing waits any more."""
        self._release()
        while self._heap or self._sending:  # noqa: ASYNC110 - `drain` may never come to its end
            await asyncio.sleep(0.005)

    async def drain(self) -> None:
        """Send what is due, until it is cancelled; raises `ConnectionError`."""
        loop = asyncio.get_running_loop()
        while True:
            while self._condition.stalled:
                self._condition.changed.clear()
                await self._condition.changed.wait()
            if not self._heap:
                self._moved.clear()
                await self._moved.wait()
                continue
            wait_s = self._heap[0][0] - loop.time()
            if wait_s > 0:
                self._moved.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._moved.wait()
                except TimeoutError:
                    pass
                continue
            _, _, data = heapq.heappop(self._heap)
            self._sending = True
            await self._send(data)
            self._sending = False
            self._bytes -= len(data)
            if self._bytes < HELD_BYTES_MAX:
                self._room.set()

    async def _send(self, data: bytes) -> None:
        if not self._condition.bytes_per_s:
            self._writer.write(data)
            await self._writer.drain()
            return
        for start in range(0, len(data), _CHUNK):
            piece = data[start : start + _CHUNK]
            self._writer.write(piece)
            await self._writer.drain()
            if rate := self._condition.bytes_per_s:
                await asyncio.sleep(len(piece) / rate)
