"""Flows that take what they can get: memory bit by bit, memory at once, and the processor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from geartrain import Flow, Record, Table
from geartrain.source import Batch, Source, Split


class Nothing(Record):
    number: int


class _Taking:
    """Takes something at each read, and gives nothing."""

    name, out_of_orderness_us = "taking", 0

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._kept: list[bytearray] = []

    async def read(self, position: int, limit: int) -> Batch:
        if self._kind == "leak":
            self._kept.append(bytearray(b"x" * 2_000_000))
            await asyncio.sleep(0.02)
        elif self._kind == "burst":
            self._kept.append(bytearray(4_000_000_000))
        else:
            until_s = time.monotonic() + 0.5
            while time.monotonic() < until_s:
                pass
        return Batch([], [], [], position)

    async def close(self) -> None:
        """Nothing to release."""


class Taking(Source[Nothing]):
    bounded: ClassVar[bool] = False
    kind: str = "leak"

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_Taking(self.kind)]


def _flow(kind: str) -> Flow:
    made = Flow(kind)
    made.source("taking", Taking(kind=kind), out=Nothing).sink("none", Table("none"))
    return made


leak, burst, busy = map(_flow, ("leak", "burst", "busy"))
