"""The machine's own clock and randomness, behind the ports of `geartrain.ports.clock`."""

from __future__ import annotations

import asyncio
import os
import time


class SystemClock:
    """The clock of this machine; implements `geartrain.ports.Clock`."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start, never decreasing."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class SystemRandomness:
    """The operating system's randomness; implements `geartrain.ports.Randomness`."""

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high], of 53 random bits."""
        return low + (high - low) * (int.from_bytes(os.urandom(7), "big") >> 3) * 2.0**-53

    def token(self, size: int) -> bytes:
        """`size` random bytes, fit for identities."""
        return os.urandom(size)
