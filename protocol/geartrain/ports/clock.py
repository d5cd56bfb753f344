"""Time and randomness as ports: the only way for agent and ingest to learn the hour or to toss a coin."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The time of one node. Wall time may jump; monotonic time never goes back."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start, never decreasing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time."""
        ...


class Randomness(Protocol):
    """Random numbers of one node: identities and jitter."""

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        ...

    def token(self, size: int) -> bytes:
        """`size` random bytes."""
        ...
