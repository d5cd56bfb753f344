"""Two flows of one device: alarms by the clock, which are urgent, and a sensor that never ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from geartrain import Flow, Record, Table
from geartrain.source import Batch, Source, Split

ALARM_S = 0.02
SECOND_US = 1_000_000


class Sample(Record):
    """One value."""

    number: int
    value: float


class _Alarms:
    """Alarm n is born `ALARM_S` after the one before; its event time is when that was."""

    name, out_of_orderness_us = "alarms", 0

    def __init__(self) -> None:
        self._next_s = 0.0

    async def read(self, position: int, limit: int) -> Batch:
        """Those that are born since the last read."""
        now_s = time.time()
        self._next_s = self._next_s or now_s
        times: list[int] = []
        while self._next_s <= now_s and len(times) < limit:
            times.append(int(self._next_s * SECOND_US))
            self._next_s += ALARM_S
        numbers = range(position, position + len(times))
        return Batch([Sample(n, n / 4) for n in numbers], times, list(numbers), numbers.stop)

    async def close(self) -> None:
        """Nothing to release."""


class _Bulk:
    """As many as are asked for."""

    name, out_of_orderness_us = "bulk", 0

    async def read(self, position: int, limit: int) -> Batch:
        """The next ones."""
        numbers = range(position, position + limit)
        times = [1_700_000_000_000_000 + n * 1_000 for n in numbers]
        return Batch([Sample(n, n % 80 / 4) for n in numbers], times, list(numbers), numbers.stop)

    async def close(self) -> None:
        """Nothing to release."""


class Alarms(Source[Sample]):
    """A button that is pressed again and again."""

    bounded: ClassVar[bool] = False
    in_order: ClassVar[bool] = True

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        """The one split."""
        return [_Alarms()]


class Bulk(Source[Sample]):
    """A backlog without an end."""

    bounded: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    pausable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        """The one split."""
        return [_Bulk()]


alarms = Flow("alarms")
alarms.source("pressed", Alarms(), out=Sample).sink("alarms", Table("alarms"))

bulk = Flow("bulk")
bulk.source("sensed", Bulk(), out=Sample).sink("samples", Table("samples"))
