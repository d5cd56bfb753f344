"""Revisions of one flow: steps come and go, and those that stay keep what they have kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from geartrain import Context, Flow, Table, Task, agg, tumbling
from geartrain.testing import TestingSource
from tests.hosting.mill.flows import Adding
from tests.hosting.mill.records import Halved, Level, Reading, Running, Second, Sum, Text, Wide


class Counting(Task[Sum, Level]):
    """How often each count has come."""

    state = Running

    def on_next(self, value: Sum, ctx: Context[Level, Running]) -> None:
        ctx.state.count += 1
        ctx.emit(Level(value.count, ctx.state.count))


def widened(running: Running) -> Wide:
    """The state of sums with the last value."""
    return Wide(running.count, running.total)


class AddingWide(Adding):
    """The sums by code that keeps another type of state, and that could have timers."""

    state: ClassVar[type] = Wide
    migrate: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Running: widened}

    def __init__(self, factor: float) -> None:
        super().__init__(factor)

    def on_next(self, reading: Reading, ctx: Context[Sum, Any]) -> None:
        super().on_next(reading, ctx)
        ctx.state.last = reading.value

    def on_notify(self, time: int, ctx: Context[Sum, Any]) -> None:
        pass


def make(
    factor: float,
    *,
    levels: bool,
    windows: bool,
    again: bool = False,
    as_text: bool = False,
    seen: bool = False,
    later: bool = False,
    wide: bool = False,
) -> Flow:
    """The sums of sensors; levels: with a step behind another shuffle; windows: with one beside, too; again:
    with a third shuffle; as_text: with counts that no table of the others can hold; seen: with a broadcast;
    later: with steps that nothing else reads, below readings and below sums; wide: with sums that keep
    another type of state.
    """
    flow = Flow("river")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    keyed = readings.key_by("sensor", name="by_sensor")
    if again:
        keyed = keyed.process("twice", Adding(1.0)).map(back, name="back").key_by("sensor", name="anew")
    sums = keyed.process("adding", AddingWide(factor) if wide else Adding(factor))
    shown = sums.map(texts) if as_text else sums.map(halved) if windows else sums
    shown.sink("each", Table("each_sum"))
    if levels:
        counted = sums.key_by("count", name="by_count").process("levels", Counting())
        counted.sink("level", Table("level"))
    if windows:
        seconds = readings.key_by("sensor", name="by_name").window(tumbling(timedelta(seconds=1)))
        seconds.aggregate("per_second", out=Second, readings=agg.count()).sink("second", Table("second"))
    if later:
        sums.key_by("count", name="by_count_too").process("levels_too", Counting()).sink(
            "level_too", Table("level_too")
        )
        whole = readings.key_by("sensor", name="by_name").window(tumbling(timedelta(seconds=1)))
        whole.aggregate("per_second", out=Second, readings=agg.count()).sink("second", Table("second"))
    if seen:
        readings.broadcast("looked", readings, sensors_so_far, key="sensor").sink("seen", Table("seen"))
    return flow


REFUSED = 11.0
"""The value of readings that `sensors_so_far` refuses."""


def sensors_so_far(value: Reading, table: Mapping[str, Reading]) -> Sum:
    """A reading with how many sensors there are up to it."""
    if value.value == REFUSED:
        raise ValueError("too much")
    return Sum(value.sensor, len(table), value.value)


def halved(value: Sum) -> Halved:
    """A sum with its half beside it."""
    return Halved(value.sensor, value.count, value.total, value.total / 2)


def texts(value: Sum) -> Text:
    """A sum with its count as a text."""
    return Text(value.sensor, str(value.count), value.total)


def back(value: Sum) -> Reading:
    """A reading of a sum."""
    return Reading(value.sensor, value.total)


one = make(0.5, levels=True, windows=False)
two = make(0.25, levels=False, windows=True)
two_wide = make(0.25, levels=False, windows=True, wide=True)
three = make(0.25, levels=True, windows=False)
deep = make(0.25, levels=True, windows=False, again=True)
counts_as_text = make(0.5, levels=True, windows=False, as_text=True)
both = make(0.25, levels=True, windows=True)
with_table = make(0.25, levels=True, windows=True, seen=True)
with_more = make(0.5, levels=True, windows=False, later=True)
