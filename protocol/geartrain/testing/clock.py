"""A clock that stands still until it is moved, and randomness from a seed: time and chance in a test's
hands.
"""

from __future__ import annotations

import asyncio
import random

from geartrain.records.event_time import SECOND_US


class FakeClock:
    """A `Clock` at `now_us`; `advance` moves it and wakes the sleepers whose time has come, in order."""

    def __init__(self, now_us: int = 0) -> None:
        self._start_us = now_us
        self._elapsed_us = 0
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return self._start_us + self._elapsed_us

    def monotonic_s(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed_us / SECOND_US

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._elapsed_us + round(seconds * SECOND_US)
        self._sleepers.append((due, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move the clock and wake who is due."""
        self._elapsed_us += round(seconds * SECOND_US)
        due = sorted((s for s in self._sleepers if s[0] <= self._elapsed_us), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._elapsed_us]
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)


class SeededRandomness:
    """A `Randomness` whose draws are a function of its seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test wants the same draws each time

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        return self._random.uniform(low, high)

    def token(self, size: int) -> bytes:
        """`size` bytes."""
        return self._random.randbytes(size)
