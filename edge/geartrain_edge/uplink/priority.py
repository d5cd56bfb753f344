"""Priority: among the flows of one agent, the urgent ones come first.

The reading and the sending of every flow use it. Guarantees: while an urgent flow has a committed batch that
its connection can take, the agent's other flows read and send nothing new. So an urgent flow waits only for a
limited number of publishes: those already handed to the other connections. Nobody waits for a flow that has
no connection, no open epoch, a full window, or nothing to send.
"""

from __future__ import annotations

import asyncio


class Priority:
    """What the flows of one agent share."""

    def __init__(self) -> None:
        self._claims: set[str] = set()
        self._free = asyncio.Event()
        self._free.set()

    def turn(self, flow: str, *, is_urgent: bool) -> Turn:
        """The part of one flow, by its name."""
        return Turn(self, flow, is_urgent)

    def claim(self, flow: str) -> None:
        """Have the others wait."""
        self._claims.add(flow)
        self._free.clear()

    def release(self, flow: str) -> None:
        """Let them go on, unless another flow claims."""
        self._claims.discard(flow)
        if not self._claims:
            self._free.set()

    async def wait(self) -> None:
        """Return once no flow claims."""
        await self._free.wait()


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
