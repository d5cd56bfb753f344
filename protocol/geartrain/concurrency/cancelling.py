"""Cancellations that are not lost: in calls of libraries, and in whoever waits for the end of a task.

A task that loses its cancellation goes on, and whoever waits for its end waits for ever. Guarantees: a
cancellation that comes during a call, or during a wait, is heard behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def heed_cancellation(call: Awaitable[T]) -> T:
    """What `call` returns or raises; raises `CancelledError` where the task was cancelled meanwhile.

    For calls of libraries that wait with `asyncio.wait_for`: on Python 3.11 this may return and not be
    cancelled. Source: https://github.com/python/cpython/issues/86296, mended in Python 3.12.
    """
    task = cast("asyncio.Task[object]", asyncio.current_task())
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; an error that it raises is passed over."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asyncio would log it as one that nobody has looked at
