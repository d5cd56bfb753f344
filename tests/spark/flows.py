"""Small flows for the tests of the Spark part, and plain Python that says what they must give."""

from __future__ import annotations

import random
from collections.abc import Iterable

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.testing import TestingSource

DEVICES = 3


class Reading(Record):
    """A value of a sensor."""

    sensor: str
    value: float


class Sum(Record):
    """What a sensor's values add up to, in the order of their times."""

    sensor: str
    count: int
    total: float


class Running(State):
    """Of one sensor."""

    count: int = 0
    total: float = 0.0


class Adding(Task[Reading, Sum]):
    """Adds up; floats make the order of the additions visible."""

    state = Running

    def on_next(self, reading: Reading, ctx: Context[Sum, Running]) -> None:
        if reading.value == 13.0:
            raise ValueError("thirteen is refused")
        ctx.state.count += 1
        ctx.state.total = ctx.state.total * 0.75 + reading.value
        ctx.emit(Sum(reading.sensor, ctx.state.count, ctx.state.total))


def positive(reading: Reading) -> bool:
    """Drop what is below zero; a reading of zero cannot be judged."""
    if reading.value == 0.0:
        raise ValueError("zero has no sign")
    return reading.value > 0


def sums_flow() -> Flow:
    """Readings above zero: all to a table, and the running sum of each sensor to two tables."""
    flow = Flow("sums")
    source = TestingSource[Reading]()
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    kept = readings.filter(positive)
    kept.sink("kept", Table("kept"))
    by_sensor = kept.key_by("sensor", name="by_sensor")
    sums = by_sensor.process("adding", Adding())
    sums.sink("each", Table("each_sum"))
    sums.sink("last", Table("last_sum", key=("sensor",)))
    return flow


def expected_sums(readings: Iterable[Reading]) -> list[Sum]:
    """All sums, in the order of the readings."""
    count: dict[str, int] = {}
    total: dict[str, float] = {}
    sums = []
    for reading in readings:
        if reading.value <= 0 or reading.value == 13.0:
            continue
        count[reading.sensor] = count.get(reading.sensor, 0) + 1
        total[reading.sensor] = total.get(reading.sensor, 0.0) * 0.75 + reading.value
        sums.append(Sum(reading.sensor, count[reading.sensor], total[reading.sensor]))
    return sums


def sensors(seed: int, count: int) -> list[tuple[Reading, int, str, int]]:
    """Readings of three devices, each with sensors of its own, in event-time order."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        device = rng.randrange(DEVICES)
        value = rng.choice([0.0, 13.0, -1.0]) if rng.random() < 0.05 else round(rng.uniform(0.1, 9.9), 3)
        found.append(
            (Reading(f"{device}-{rng.randrange(9)}", value), number, f"device-{device}/readings", number)
        )
    return found


flow = sums_flow()
