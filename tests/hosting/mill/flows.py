"""Flows that differ in a factor and a filter, and values that make their code misbehave."""

from __future__ import annotations

import os
import time
from typing import ClassVar

from geartrain import Context, Flow, Table, Task
from geartrain.testing import TestingSource
from tests.hosting.mill.records import Level, Reading, Running, Spread, Sum

LETTER, RAISE, EXIT, HANG = 1013.0, 1333.0, 1666.0, 1777.0
SLOW, SLOW_S = 500.5, 0.01
FACTORS = (0.5, 0.25, 0.75, 0.125, -0.5, 1.0)
MENDED = False


class CannotGoOn(BaseException):
    """What no dead letter is made of."""


class Adding(Task[Reading, Sum]):
    """Adds up; floats make the order of the additions visible."""

    state: ClassVar[type] = Running

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def on_next(self, reading: Reading, ctx: Context[Sum, Running]) -> None:
        value = reading.value
        if value == LETTER or (MENDED and value >= LETTER):
            raise ValueError("refused")
        if value == RAISE:
            raise CannotGoOn("this flow raises")
        if value == EXIT:
            os._exit(9)
        while value == HANG:
            time.sleep(0.01)
        if value == SLOW:
            time.sleep(SLOW_S)
        ctx.state.count += 1
        ctx.state.total = ctx.state.total * self.factor + value
        ctx.emit(Sum(reading.sensor, ctx.state.count, ctx.state.total))


class Levels(Task[Sum, Level]):
    """How many sensors have come so far."""

    state = Running

    def on_next(self, value: Sum, ctx: Context[Level, Running]) -> None:
        ctx.state.count += 1
        ctx.emit(Level(value.count, ctx.state.count))


class Spreads(Task[Level, Spread]):
    """How many levels were reached by so many."""

    state = Running

    def on_next(self, value: Level, ctx: Context[Spread, Running]) -> None:
        ctx.state.count += 1
        ctx.emit(Spread(value.sensors, ctx.state.count))


class Above:
    """Keeps what is above a limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, reading: Reading) -> bool:
        return reading.value > self.limit


def make_flow(number: int, *, is_deep: bool = False) -> Flow:
    """Number `number`: readings above a limit to a table, and the running sum of each sensor to two.

    is_deep: with two shuffles more below.
    """
    flow = Flow(f"mill{number}")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    kept = readings.filter(Above(number % 3), name="above")
    kept.sink("kept", Table("kept"))
    sums = kept.key_by("sensor", name="by_sensor").process("adding", Adding(FACTORS[number % len(FACTORS)]))
    sums.sink("each", Table("each_sum"))
    sums.sink("last", Table("last_sum", key=("sensor",)))
    if is_deep:
        levels = sums.key_by("count", name="by_count").process("levels", Levels())
        levels.sink("level", Table("level"))
        spreads = levels.key_by("sensors", name="by_sensors").process("spreads", Spreads())
        spreads.sink("spread", Table("spread"))
    return flow


flow0, flow1, flow2, flow3, flow4, flow5 = (make_flow(number) for number in range(6))
flow6 = make_flow(6, is_deep=True)
