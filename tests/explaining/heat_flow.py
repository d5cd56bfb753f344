"""A flow with one of each way in which a row can be made, for tests of explanations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from geartrain import Context, Flow, Record, State, Table, Task, agg, tumbling
from geartrain.testing import TestingSource


class Reading(Record):
    """What a sensor says."""

    sensor: str
    celsius: float


class Highest(State):
    """The highest so far."""

    celsius: float = float("-inf")


class Highs(Task[Reading, Reading]):
    """Lets those through that are higher than all before."""

    state = Highest

    def on_next(self, reading: Reading, ctx: Context[Reading, Highest]) -> None:
        if reading.celsius > ctx.state.celsius:
            ctx.state.celsius = reading.celsius
            ctx.emit(reading)


class Minute(Record):
    """The readings of a sensor in a minute."""

    sensor: str
    window_start: int
    n: int
    mean: float


class Pair(Record):
    """A reading with one of another kind at nearly the same time."""

    sensor: str
    celsius: float
    limit: float


class Limit(Record):
    """A limit that somebody sets."""

    sensor: str
    limit: float


class AtMost(Record):
    """A reading, and how many limits there were then."""

    sensor: str
    limits: int


def paired(reading: Reading, limit: Limit) -> Pair:
    """Both in one."""
    return Pair(reading.sensor, reading.celsius, limit.limit)


def counted(reading: Reading, table: Mapping[str, Limit]) -> AtMost:
    """A reading, and how many limits are known."""
    return AtMost(reading.sensor, len(table))


def plausible(reading: Reading) -> bool:
    """Whether there is such a temperature."""
    return reading.celsius > -273.15


flow = Flow("heat")
readings = flow.source("readings", TestingSource(), out=Reading)
limits = flow.source("limits", TestingSource(), out=Limit)
good = readings.filter(plausible)
good.sink("every", Table("every"))
by_sensor = good.key_by("sensor", name="by_sensor")
minutes = by_sensor.window(tumbling(timedelta(minutes=1)))
minutes.aggregate("minutes", out=Minute, n=agg.count(), mean=agg.mean("celsius")).sink(
    "means", Table("means", key=("sensor", "window_start"))
)
by_sensor.process("highs", Highs()).sink("highest", Table("highest", key=("sensor",)))
near = timedelta(seconds=5)
by_limit = limits.key_by("sensor", name="by_limit")
by_sensor.join("near", by_limit, paired, lower=-near, upper=near).sink("near_by", Table("pairs"))
good.broadcast("known", limits, counted, key="sensor").sink("all_known", Table("counted"))
