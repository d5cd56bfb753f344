"""A split read on and on, until it has given what a test waits for."""

from __future__ import annotations

import asyncio
from typing import Any

from geartrain.source import Batch, Reject
from tests.waiting import Wait


async def until(split: Any, rows: int, position: int = 0, limit: int = 100) -> Batch:
    """What reads give until there are so many rows, refused ones too, and nothing more for now."""
    values: list[Any] = []
    times: list[int] = []
    numbers: list[int] = []
    rejects: list[Reject] = []
    wait = Wait("rows of the source")
    while len(values) + len(rejects) < rows or split.is_behind:
        wait.check((values, rejects))
        found = await split.read(position, limit)
        assert len(found.values) + len(found.rejects) <= limit
        values += found.values
        times += found.times
        numbers += found.numbers
        rejects += found.rejects
        position = found.position
        await asyncio.sleep(0.005)
    return Batch(values, times, numbers, position, rejects)
