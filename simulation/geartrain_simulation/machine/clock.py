"""A node's clock in virtual time: its wall clock has an offset, drifts, and may jump.

Agent and ingest get it as their `Clock`. Guarantees: monotonic time never goes back, and it runs at true
speed but for the drift; a wall clock never shows a time before 1970.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geartrain_simulation.machine.world import Process

WALL_START_US = 1_600_000_000_000_000
"""The true wall time at virtual time 0, microseconds since 1970 UTC."""


FLOOR_US = 1_000_000_000_000_000
"""A wall clock that shows less was not set yet: September 2001."""


class Offset:
    """How far a node's wall clock is off; it outlives the node's processes."""

    def __init__(self, offset_us: int = 0, drift_ppm: float = 0.0) -> None:
        """`drift_ppm`: microseconds that it gains in each second."""
        self.offset_us, self.drift_ppm = offset_us, drift_ppm

    def jump(self, by_us: int) -> None:
        """Set the wall clock forward, or back."""
        self.offset_us += by_us

    def begin_at(self, time_us: int, true_s: float = 0.0) -> None:
        """Set the wall clock to what a clock without a battery shows when it is switched on, at a virtual
        time.
        """
        self.offset_us = time_us - WALL_START_US - round(true_s * 1e6)

    def is_known(self, true_s: float) -> bool:
        """Whether it shows at a virtual time what a clock can show that somebody has set."""
        return self.wall_us(true_s) >= FLOOR_US

    def wall_us(self, true_s: float) -> int:
        """What it shows at a virtual time, microseconds since 1970 UTC."""
        gained_us = self.drift_ppm * true_s
        return max(WALL_START_US + self.offset_us + round(true_s * 1e6 + gained_us), 0)


class SimClock:
    """`geartrain.ports.Clock` of one process."""

    def __init__(self, process: Process, offset: Offset | None = None) -> None:
        """`offset`: of the node's wall clock, by default what the node has."""
        self._process = process
        self._offset = offset if offset is not None else process.node.offset
        self._start_s = process.random("clock").uniform(0, 1e5)  # a monotonic clock starts anywhere

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return self._offset.wall_us(self._process.world.loop.time())

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start, as the node's clock counts them."""
        return self._start_s + self._process.world.loop.time() * self._speed

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of the node's own time."""
        await asyncio.sleep(seconds / self._speed)

    @property
    def _speed(self) -> float:
        return 1 + self._offset.drift_ppm / 1e6


class SimBootClock:
    """`geartrain.ports.boot_clock.BootClock` of one process: a boot lasts until its node loses power."""

    def __init__(self, process: Process) -> None:
        self._process, self._is_known = process, False

    def boot(self) -> bytes:
        """The number of the node's boot."""
        return str(self._process.node.boots).encode()

    def since_boot_us(self) -> int:
        """Microseconds of true time since then."""
        return round((self._process.world.loop.time() - self._process.node.booted_s) * 1e6)

    def wall_is_known(self) -> bool:
        """Whether somebody has set the wall clock."""
        self._is_known = self._is_known or self._process.node.offset.is_known(self._process.world.loop.time())
        return self._is_known
