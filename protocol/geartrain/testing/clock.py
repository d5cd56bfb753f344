"""A clock that stands still until it is moved, and randomness from a seed: time and chance in a test's
hands.
"""

from __future__ import annotations

import asyncio
import random

from geartrain.records.event_time import SECOND_US


class FakeClock:
    """A clock that stands still until a test moves it.

    Args:
        now_us: the wall clock that it begins with, microseconds since 1970 UTC.
    """

    def __init__(self, now_us: int = 0) -> None:
        self._start_us = now_us
        self._elapsed_us = 0
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        """The wall clock.

        Returns:
            Microseconds since 1970 UTC.
        """
        return self._start_us + self._elapsed_us

    def monotonic_s(self) -> float:
        """How long the clock has gone.

        Returns:
            Seconds since it was made.
        """
        return self._elapsed_us / SECOND_US

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved so far.

        Args:
            seconds: how far; for 0 or less, only others get their turn.
        """
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._elapsed_us + round(seconds * SECOND_US)
        self._sleepers.append((due, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move the clock and wake who is due, in the order of their times.

        Args:
            seconds: how far.
        """
        self._elapsed_us += round(seconds * SECOND_US)
        due = sorted((s for s in self._sleepers if s[0] <= self._elapsed_us), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._elapsed_us]
        for _, woken in due:
            if not woken.done():
                woken.set_result(None)


class SeededRandomness:
    """Randomness whose draws are a function of its seed.

    Args:
        seed: equal seeds give equal draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test wants the same draws each time

    def uniform(self, low: float, high: float) -> float:
        """A random number.

        Args:
            low: the least.
            high: the greatest.

        Returns:
            A float in [low, high].
        """
        return self._random.uniform(low, high)

    def token(self, size: int) -> bytes:
        """Random bytes.

        Args:
            size: how many.

        Returns:
            The bytes.
        """
        return self._random.randbytes(size)
