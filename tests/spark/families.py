"""One flow with a step of each family that waits for time: an order and a task with timers, windows of all
kinds, joins, a broadcast, a window over what timers put out; and data that keeps all of them waiting.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from geartrain import (
    Context,
    Flow,
    Record,
    State,
    Table,
    Task,
    agg,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import RowCodec
from geartrain.source import Batch
from geartrain.testing import TestingSource
from tests.reference.two_tiers import World
from tests.spark.case_log import Logged, columns_of


class Sample(Record):
    """A value of a sensor."""

    key: str
    x: float


class Rate(Record):
    """What a value counts for."""

    key: str
    factor: float


class Summary(Record):
    """Of a window."""

    key: str
    n: int
    avg: float
    most: float
    window_end: int


class Sums(Record):
    """Of a window, with the two largest values."""

    key: str
    sum_x: float
    best: list[float]


class Pair(Record):
    """Two values."""

    key: str
    left: float
    right: float | None


class Quiet(State):
    """Since when a key is quiet."""

    last: float = 0.0
    quiet: int = 0


class Silence(Task[Sample, Sample]):
    """Says how long a key has been quiet, again and again, until it speaks."""

    state = Quiet

    def on_next(self, value: Sample, ctx: Context[Sample, Quiet]) -> None:
        ctx.state.last, ctx.state.quiet = value.x, 0
        ctx.notify_at(ctx.event_time + 40)

    def on_notify(self, time: int, ctx: Context[Sample, Quiet]) -> None:
        ctx.state.quiet += 1
        ctx.emit(Sample(str(ctx.key), ctx.state.last / ctx.state.quiet))
        if ctx.state.quiet < 4:
            ctx.notify_at(time + 15)


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


def paired(left: Sample, right: Sample | None) -> Pair:
    return Pair(left.key, left.x, None if right is None else right.x)


def rated(value: Sample, table: Mapping[Any, Rate]) -> Sample:
    return Sample(value.key, value.x * table[value.key].factor)


def longer(left: Sample, right: Sample) -> Sample:
    return Sample(left.key, left.x * 0.5 + right.x)


class Unordered(TestingSource[Any]):
    in_order = False


def families_flow() -> Flow:
    flow = Flow("families")
    samples = flow.source("samples", Unordered(), out=Sample)
    rates = flow.source("rates", Unordered(), out=Rate)
    keyed = samples.key_by("key", name="by_key")
    silences = keyed.process("silence", Silence())
    silences.sink("silences", Table("silences"))
    hours = keyed.window(tumbling(us(60))).aggregate(
        "hour", out=Summary, n=agg.count(), avg=agg.mean("x"), most=agg.max("x")
    )
    hours.sink("hours", Table("hours"))
    best = keyed.window(sliding(us(90), us(30))).aggregate(
        "best", out=Sums, sum_x=agg.sum("x"), best=agg.top_n("x", 2)
    )
    best.sink("bests", Table("bests"))
    keyed.window(session(us(25))).reduce("visit", longer).sink("visits", Table("visits"))
    keyed.window(global_window()).reduce("whole", longer).sink("wholes", Table("wholes"))
    again = silences.key_by("key", name="again")
    again.window(tumbling(us(100))).aggregate(
        "quiet_hour", out=Summary, n=agg.count(), avg=agg.mean("x"), most=agg.max("x")
    ).sink("quiet_hours", Table("quiet_hours"))
    again.join("near", keyed, paired, lower=us(-30), upper=us(30), how="left").sink("nears", Table("nears"))
    keyed.join("same", keyed, paired, within=tumbling(us(20)), out=Pair).sink("sames", Table("sames"))
    rated_samples = samples.broadcast("rated", rates, rated, key="key")
    rated_samples.merge("all", silences).sink("alls", Table("alls"))
    return flow


def families_plan(cut: str = "cloud") -> Plan:
    return make_plan(families_flow().graph(), cut)


WAITING = {
    "silence_order",
    "silence",
    "hour",
    "best",
    "visit_order",
    "visit",
    "whole_order",
    "whole",
    "quiet_hour",
    "near",
    "same",
    "rated",
}
"""The steps that hold something back."""


def families_world(seed: int) -> World:
    """Two devices with values out of order and rates now and then, from before 1970 on."""
    rng = random.Random(seed)
    devices: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for device in ("d0", "d1"):
        samples, rates = [], []
        for number in range(120):
            time = -600 + number * 10 + rng.randrange(-20, 21)
            samples.append((time, Sample(rng.choice("abcd"), round(rng.uniform(-9, 9), 3))))
            if number % 12 == 0:
                rates.append((time, Rate(rng.choice("abc"), float(number + 1))))
        devices[device] = {"samples": {device: samples}, "rates": {device: rates}}
    return World(devices, {"samples": 40, "rates": 60})


def families_log(world: World) -> list[Logged]:
    """The log of that world where only the sources are on the devices, read in turns of eight records; at the
    end, only the clocks move.
    """
    codecs = {"samples": RowCodec(Sample), "rates": RowCodec(Rate)}
    splits = [
        (SplitTracker(source, name, world.bounds_us[source], None), list(items))
        for sources in world.devices.values()
        for source, by_name in sources.items()
        for name, items in by_name.items()
    ]
    log: list[Logged] = []

    def clocks() -> dict[str, int]:
        sources = ("samples", "rates")
        return {s: min(tracker.watermark for tracker, _ in splits if tracker.step == s) for s in sources}

    for first in range(0, max(len(items) for _, items in splits), 8):
        for tracker, items in splits:
            taken = items[first : first + 8]
            times, values = [time for time, _ in taken], [value for _, value in taken]
            numbers = list(range(first, first + len(taken)))
            batch, late, _ = tracker.observe(Batch(values, times, numbers, first + len(taken)))
            assert not late
            if len(batch):
                rows = columns_of(codecs[tracker.step], batch)
                log.append(Logged(tracker.step, rows, clocks()))
        log.append(Logged("", None, clocks()))
    return [*log, Logged("", None, dict.fromkeys(("samples", "rates"), END_OF_TIME))]
