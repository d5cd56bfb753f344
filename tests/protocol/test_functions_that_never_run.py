"""User code that a call would not run, or not all of it, is refused when the flow is built."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from geartrain import Context, Flow, Task
from geartrain.errors import FlowError
from geartrain.processor import Input, Output, Processor, dataflow
from geartrain.testing import TestingSink, TestingSource, run_flow


class Awaits(Task[int, int]):
    async def on_next(self, value: int, ctx: Context[int, None]) -> None:  # type: ignore[override]
        ctx.emit(value)


class Yields(Task[int, int]):
    def on_next(self, value: int, ctx: Context[int, None]) -> Iterator[int]:  # type: ignore[override]
        yield value


class Lacks(Task[int, int]):
    pass


class Wakes(Task[int, int]):
    def on_next(self, value: int, ctx: Context[int, None]) -> None:
        ctx.notify_at(value)

    async def on_notify(self, time: int, ctx: Context[int, None]) -> None:  # type: ignore[override]
        ctx.emit(time)


class Misnames(Task[int, int]):
    def on_next(self, value: int, ctx: Context[int, None]) -> None:
        ctx.notify_at(value)

    def on_timer(self, time: int, ctx: Context[int, None]) -> None:
        ctx.emit(time)


class Touches(Task[int, int]):
    def on_next(self, value: int, ctx: Any) -> None:
        ctx.timer(value)


async def awaits(value: int) -> int:
    return value


async def awaits_many(value: int) -> Any:
    yield value


def yields(value: int) -> Iterator[int]:
    yield value
    yield value


def begin() -> tuple[Flow, Any]:
    flow = Flow("numbers")
    return flow, flow.source("numbers", TestingSource(items=[(1, 3), (2, 5)]), out=int)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Awaits(), "Awaits.on_next is async, and would never run: write def in the place of async def"),
        (Yields(), "Yields.on_next has a yield, so that a call would run none of it: emit by"),
        (Wakes(), "Wakes.on_notify is async"),
        (Misnames(), "Misnames.on_timer is never called: a task has on_start, on_next"),
        (Lacks(), r"Lacks must define on_next\(value, ctx\)"),
        (Lacks, r"write Lacks\(\), not Lacks"),
        (3, "give it a geartrain.Task"),
    ],
)
def test_a_task_that_would_do_nothing_is_refused(task: Any, says: str) -> None:
    _, numbers = begin()
    keyed = numbers.key_by(lambda value: value, name="each")
    with pytest.raises(FlowError, match=f"flow numbers, step 'tried': {says}"):
        keyed.process("tried", task)


def test_a_context_says_what_it_has() -> None:
    flow, numbers = begin()
    keyed = numbers.key_by(lambda value: value, name="each")
    keyed.process("tried", Touches()).sink("out", TestingSink("out"))
    (reason,) = {letter.reason for letter in run_flow(flow).dead_letters}
    there = "state, emit, event_time, key, log, metrics, notify_at, now_us, random"
    assert reason == f"AttributeError: a context has no timer; it has {there}"


def test_so_is_one_of_the_low_level_face() -> None:
    way = (
        Input("numbers", TestingSource(items=[(1, 3)]), out=int)
        >> Processor(Awaits(), id="tried")
        >> Output("out", TestingSink("out"))
    )
    with pytest.raises(FlowError, match=r"step 'tried': Awaits\.on_next is async"):
        dataflow("numbers", way)


@pytest.mark.parametrize("function", [awaits, awaits_many, yields, partial(awaits), partial(partial(yields))])
@pytest.mark.parametrize("verb", ["map", "filter", "key_by"])
def test_a_function_that_would_not_run_is_refused(verb: str, function: Any) -> None:
    """An `async def` and a generator are true whatever they would return: a filter let all records pass."""
    _, numbers = begin()
    more = {"out": int} if verb == "map" else {}
    with pytest.raises(FlowError, match=r"flow numbers, step 'tried': .* (is async|has a yield)"):
        getattr(numbers, verb)(function, name="tried", **more)


def test_a_flat_map_may_yield_but_not_await() -> None:
    flow, numbers = begin()
    numbers.flat_map(yields).sink("out", TestingSink("out"))
    assert [value for _, value in run_flow(flow).tables["out"]] == [3, 3, 5, 5]
    for function in (awaits, awaits_many):
        with pytest.raises(FlowError, match=f"{function.__name__} is async"):
            numbers.flat_map(function, out=int)
