"""A flow whose step on the device keeps a count of each of ten sensors, at 1,000 records a second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.source import Batch, Source, Split

PER_S, SENSORS = 1_000, 10


class Sample(Record):
    """One value."""

    sensor: str
    value: float


class Count(State):
    """How many came."""

    count: int = 0


class Counting(Task[Sample, Sample]):
    """Passes on what it counts."""

    state = Count

    def on_next(self, sample: Sample, ctx: Context[Sample, Count]) -> None:
        """Count one."""
        ctx.state.count += 1
        ctx.emit(sample)


class _Samples:
    """As many as are due."""

    name, out_of_orderness_us = "samples", 0

    def __init__(self) -> None:
        self._began_s, self._first = time.monotonic(), -1

    async def read(self, position: int, limit: int) -> Batch:
        """Those that are born since the last read."""
        if self._first < 0:
            self._first = position
        due = self._first + int((time.monotonic() - self._began_s) * PER_S)
        numbers = range(position, min(due, position + limit))
        samples = [Sample(f"s{n % SENSORS}", n / 4) for n in numbers]
        times = [1_700_000_000_000_000 + n * 1_000 for n in numbers]
        return Batch(samples, times, list(numbers), position + len(numbers))

    async def close(self) -> None:
        """Nothing to release."""


class Samples(Source[Sample]):
    """A sensor that never ends."""

    bounded: ClassVar[bool] = False
    in_order: ClassVar[bool] = True

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        """The one split."""
        return [_Samples()]


flow = Flow("asked")
samples = flow.source("samples", Samples(), out=Sample, partitioned_by="sensor")
samples.key_by("sensor").process("counting", Counting()).at("edge").sink("out", Table("out"))
