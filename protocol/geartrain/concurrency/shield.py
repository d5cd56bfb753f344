"""Work that is begun is carried to its end: a change of a store, and what memory holds of it.

Around what a connection asks for, which may break at any await. Guarantees: a cancellation is heard only once
the work is done, so that memory never stands before a change that the disk holds already, or may come to
hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shield(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; raises `CancelledError` behind it where that came meanwhile.

    The work has to end by itself: it is waited for however often the waiting is cancelled.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
