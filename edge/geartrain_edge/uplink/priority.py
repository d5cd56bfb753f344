"""Priority: among the flows of one device, the urgent ones come first.

The reading and the sending of every flow use it. Guarantees: while an urgent flow has a committed batch that
its connection can take, the device's other flows read and send nothing new. So an urgent flow waits only for
a limited number of publishes: those already handed to the other connections. Nobody waits for a flow that has
no connection, no open epoch, a full window, or nothing to send. For flows of another process nobody waits
longer than half of the time: one that claims forever, from whatever fault, slows the others and stops none.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from geartrain.ports import Clock

WAIT_S_MAX = 0.5
"""So long is another process waited for at a time; then it is not, for as long."""
_LOOK_S = 0.001


class Claims(Protocol):
    """Claims between processes."""

    def claim(self) -> None:
        """Have other processes wait."""
        ...

    def release(self) -> None:
        """Let them go on."""
        ...

    def is_claimed(self) -> bool:
        """Whether another process claims."""
        ...


class Priority:
    """What the flows of one agent share."""

    def __init__(self, claims: Claims | None = None, clock: Clock | None = None) -> None:
        """`claims`: between this process and others of the device, with the clock for its waits."""
        self._claimed: set[str] = set()
        self._free = asyncio.Event()
        self._free.set()
        self._beside = Courtesy(claims, clock) if claims is not None and clock is not None else None

    def turn(self, flow: str, *, is_urgent: bool) -> Turn:
        """The part of one flow, by its name."""
        return Turn(self, flow, is_urgent)

    def claim(self, flow: str) -> None:
        """Have the others wait."""
        if not self._claimed and self._beside is not None:
            self._beside.claims.claim()
        self._claimed.add(flow)
        self._free.clear()

    def release(self, flow: str) -> None:
        """Let them go on, unless another flow claims."""
        if flow not in self._claimed:
            return
        self._claimed.discard(flow)
        if not self._claimed:
            self._free.set()
            if self._beside is not None:
                self._beside.claims.release()

    async def wait(self) -> None:
        """Return once no flow claims."""
        await self._free.wait()
        if self._beside is not None:
            await self._beside.wait()


class Courtesy:
    """Gives way to other processes, for half of the time at the most."""

    def __init__(self, claims: Claims, clock: Clock) -> None:
        self.claims, self._clock = claims, clock
        self._since_s: float | None = None
        self._own_until_s = 0.0

    async def wait(self) -> None:
        """Return once no other process claims, or when this one's time has come."""
        while self.claims.is_claimed():
            now_s = self._clock.monotonic_s()
            if now_s < self._own_until_s:
                return
            if self._since_s is None:
                self._since_s = now_s
            elif now_s - self._since_s >= WAIT_S_MAX:
                self._since_s, self._own_until_s = None, now_s + WAIT_S_MAX
                return
            await self._clock.sleep(_LOOK_S)
        self._since_s = None


class Turn:
    """One flow's view: an urgent one claims and releases, any other gives way."""

    def __init__(self, shared: Priority, flow: str, is_urgent: bool) -> None:
        self._shared, self._flow, self._is_urgent = shared, flow, is_urgent

    def claim(self) -> None:
        """Come first, if this flow is urgent, until `release`."""
        if self._is_urgent:
            self._shared.claim(self._flow)

    def release(self) -> None:
        """There is nothing to send, or no way to send it."""
        if self._is_urgent:
            self._shared.release(self._flow)

    async def give_way(self) -> None:
        """Wait for the urgent flows, if this one is none."""
        if not self._is_urgent:
            await self._shared.wait()
