"""Waiting: for the first of several things, and for a timer that may move."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

from geartrain.ports import Clock


async def first_done(*works: Coroutine[Any, Any, object]) -> None:
    """Return once one of `works` has ended, with the others cancelled; raises what they raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


class MovingTimer:
    """Waits for the timer of a state machine, which other tasks may move while it waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._sooner, self._due_s = clock, asyncio.Event(), -math.inf

    def look(self, due_s: float | None) -> None:
        """Wake `wait` if the timer is due sooner now; a later one is seen when it wakes anyway."""
        if due_s is not None and due_s < self._due_s:
            self._sooner.set()

    async def wait(self, due_s: float | None) -> None:
        """Return when the timer is due, on the monotonic clock, or when it was moved forward."""
        self._sooner.clear()
        self._due_s = math.inf if due_s is None else due_s
        pause_s = self._due_s - self._clock.monotonic_s()
        if math.isinf(pause_s):
            await self._sooner.wait()
        else:
            await first_done(self._clock.sleep(max(pause_s, 0)), self._sooner.wait())
        self._due_s = -math.inf
