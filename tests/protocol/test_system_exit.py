"""`sys.exit()` in a user's function ends one call with a dead letter; Ctrl-C is not caught."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, Record, Stream, Task
from geartrain.declarations.windows import tumbling
from geartrain.errors import StepError
from geartrain.testing import TestingSink, TestingSource, run_flow


class Reading(Record):
    sensor: str
    value: int


def checked(value: int) -> int:
    """Ends the process at 13, as a script would."""
    if value == 13:
        sys.exit("unlucky")
    return value


class Total(Task[Reading, int]):
    """Sums the values of a key."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Reading, ctx: Context[int, int]) -> None:
        ctx.state += checked(value.value)
        ctx.emit(ctx.state)


class Timed(Task[Reading, int]):
    """The same from a timer."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Reading, ctx: Context[int, int]) -> None:
        ctx.state = value.value
        ctx.notify_at(ctx.event_time)

    def on_notify(self, time: int, ctx: Context[int, int]) -> None:
        ctx.emit(checked(ctx.state))


def mapped(readings: Stream[Reading]) -> Any:
    return readings.map(lambda one: checked(one.value), name="step", out=int)


def filtered(readings: Stream[Reading]) -> Any:
    return readings.filter(lambda one: bool(checked(one.value)), name="step").map(
        lambda one: one.value, name="value", out=int
    )


def many(readings: Stream[Reading]) -> Any:
    return readings.flat_map(lambda one: [checked(one.value)], name="step", out=int)


def keyed(readings: Stream[Reading]) -> Any:
    return readings.key_by(lambda one: checked(one.value), name="step").process("total", Total())


def processed(readings: Stream[Reading]) -> Any:
    return readings.key_by("value").process("step", Total())


def fired(readings: Stream[Reading]) -> Any:
    return readings.key_by("value").process("step", Timed())


def folded(readings: Stream[Reading]) -> Any:
    def add(total: int, one: Reading) -> int:
        return total + checked(one.value)

    return readings.key_by("value").window(tumbling(timedelta(seconds=1))).fold("step", int, add, out=int)


STEPS = [mapped, filtered, many, keyed, processed, fired, folded]


@pytest.mark.parametrize("step", STEPS, ids=lambda one: str(one.__name__))
@pytest.mark.parametrize("rows_max", [1, 256])
def test_exit_in_a_function_is_a_dead_letter_and_the_rest_goes_on(
    step: Callable[[Stream[Reading]], Any], rows_max: int
) -> None:
    flow = Flow("exits")
    items = [(time, Reading("a", value)) for time, value in ((1, 7), (2, 13), (3, 21))]
    readings = flow.source("readings", TestingSource(items=items), out=Reading)
    step(readings).sink("out", out := TestingSink("out"))
    results = run_flow(flow, rows_max=rows_max)
    assert sorted(value for _, value in out.records) == [7, 21]
    assert [(one.step, one.reason) for one in results.dead_letters] == [("step", "SystemExit: unlucky")]


def test_exit_at_the_start_of_a_task_names_its_step() -> None:
    class Leaving(Total):
        def on_start(self, ctx: Any) -> None:
            sys.exit(0)

    flow = Flow("exits")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    readings.key_by("sensor").process("total", Leaving()).sink("out", TestingSink("out"))
    with pytest.raises(StepError, match=r"step 'total': Leaving\.on_start raised SystemExit: 0"):
        run_flow(flow)


def test_ctrl_c_is_nobodys_dead_letter() -> None:
    def interrupt(one: Reading) -> int:
        raise KeyboardInterrupt

    flow = Flow("stopped")
    readings = flow.source("readings", TestingSource(items=[(1, Reading("a", 1))]), out=Reading)
    readings.map(interrupt, name="step", out=int).sink("out", TestingSink("out"))
    with pytest.raises(KeyboardInterrupt):
        run_flow(flow)
