"""A node's clock in virtual time: its wall clock stands off by an offset and may jump.

Handed to agent and ingest as their `Clock`. Guarantees: monotonic time is the loop's and never goes back.
"""

from __future__ import annotations

import asyncio

from geartrain_simulation.world import Process

WALL_START_US = 1_600_000_000_000_000
"""The true wall time at virtual time 0, microseconds since 1970 UTC."""


class Offset:
    """How far a node's wall clock is off, microseconds; it outlives the node's processes."""

    def __init__(self, offset_us: int = 0) -> None:
        self.offset_us = offset_us

    def jump(self, by_us: int) -> None:
        """Set the wall clock forward, or back."""
        self.offset_us += by_us


class SimClock:
    """`geartrain.ports.Clock` of one process."""

    def __init__(self, process: Process, offset: Offset | None = None) -> None:
        self._process = process
        self._offset = offset if offset is not None else Offset()
        self._start_s = process.random("clock").uniform(0, 1e5)  # a monotonic clock starts anywhere

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return WALL_START_US + self._offset.offset_us + round(self._process.world.loop.time() * 1e6)

    def monotonic_s(self) -> float:
        """Virtual seconds since an arbitrary start."""
        return self._start_s + self._process.world.loop.time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of virtual time."""
        await asyncio.sleep(seconds)
