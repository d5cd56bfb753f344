"""The low-level face by short stories: processors joined by >>, the groupings, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from geartrain import Context, Graph, Record, Task
from geartrain.errors import FlowError
from geartrain.processor import (
    Input,
    Output,
    Processor,
    broadcast,
    custom,
    dataflow,
    global_,
    hash_by,
    local,
    shuffle,
)
from geartrain.testing import ABORT, RunAbortedError, Saved, TestingSink, TestingSource, run_flow


class Call(Record):
    line: str
    seconds: int


class Total(Task[Call, str]):
    """The seconds so far of each key."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Call, ctx: Context[str, int]) -> None:
        ctx.state += value.seconds
        ctx.emit(f"{ctx.key} {ctx.state}")


class Longer(Task[Call, Call]):
    def on_next(self, value: Call, ctx: Context[Call, None]) -> None:
        if value.seconds:
            ctx.emit(Call(value.line, value.seconds * 10))


CALLS = [(1, Call("a", 1)), (2, Call("b", 2)), (3, Call("a", 3)), (4, Call("c", 0))]


def calls(*items: Any, step: str = "calls") -> Input:
    return Input(step, TestingSource(items=items or CALLS), out=Call)


OUT = Output("out", TestingSink("out"))


def answer(graph: Graph) -> list[Any]:
    return sorted(run_flow(graph).tables["out"])


@pytest.mark.parametrize("key", ["line", lambda call: call.line])
def test_hash_by_keeps_one_state_for_each_key(key: Any) -> None:
    graph = dataflow("calls", calls() >> hash_by(key) >> Processor(Total(), parallelism=4) >> OUT)
    assert answer(graph) == [(1, "a 1"), (2, "b 2"), (3, "a 4"), (4, "c 0")]
    assert graph["total"].parallelism == 4


def test_global_keeps_one_state_for_all() -> None:
    graph = dataflow("calls", calls() >> global_() >> Processor(Total()) >> OUT)
    assert answer(graph) == [(1, "0 1"), (2, "0 3"), (3, "0 6"), (4, "0 6")]


def test_custom_keeps_one_state_for_each_instance() -> None:
    deal = custom(lambda call: call.seconds)
    graph = dataflow("calls", calls() >> deal >> Processor(Total(), parallelism=2) >> OUT)
    assert answer(graph) == [(1, "1 1"), (2, "0 2"), (3, "1 4"), (4, "0 2")]


def test_broadcast_shows_every_record_to_every_instance() -> None:
    graph = dataflow("calls", calls() >> broadcast() >> Processor(Total(), parallelism=2) >> OUT)
    assert answer(graph) == sorted(
        (time, f"{instance} {seconds}")
        for time, seconds in [(1, 1), (2, 3), (3, 6), (4, 6)]
        for instance in (0, 1)
    )


@pytest.mark.parametrize("deal", [None, shuffle(), local()])
def test_a_task_without_a_key_sees_each_record_by_itself(deal: Any) -> None:
    longer = Processor(Longer(), "longer", parallelism=3)
    way = calls() >> longer if deal is None else calls() >> deal >> longer
    graph = dataflow("calls", way >> OUT)
    assert answer(graph) == [(1, Call("a", 10)), (2, Call("b", 20)), (3, Call("a", 30))]


def test_ways_fork_and_come_together() -> None:
    source, longer, total = calls(), Processor(Longer()), Processor(Total())
    every = Output("every", TestingSink("every"))
    graph = dataflow(
        "calls",
        source >> longer >> hash_by("line") >> total >> OUT,
        source >> hash_by("line") >> total,
        source >> every,
    )
    results = run_flow(graph)
    assert results.tables["every"] == CALLS
    assert [time for time, _ in results.tables["out"]].count(3) == 2
    assert max(text for _, text in results.tables["out"] if text.startswith("a")) == "a 44"


def test_a_low_level_flow_goes_on_after_a_crash() -> None:
    source = calls(CALLS[0], ABORT, *CALLS[1:])
    graph = dataflow("calls", source >> hash_by("line") >> Processor(Total()) >> OUT)
    saved = Saved()
    with pytest.raises(RunAbortedError):
        run_flow(graph, saved)
    assert sorted(run_flow(graph, saved).tables["out"])[2] == (3, "a 4")


def test_a_record_that_no_instance_can_have_is_a_dead_letter() -> None:
    deal = custom(lambda call: "first")  # type: ignore[arg-type, return-value]
    graph = dataflow("calls", calls(CALLS[0]) >> deal >> Processor(Total(), parallelism=2) >> OUT)
    (letter,) = run_flow(graph).dead_letters
    assert letter.reason == "TypeError: custom(...) gave 'first', which is not the number of an instance"


def _loop() -> Graph:
    first, second = Processor(Longer(), "first"), Processor(Longer(), "second")
    return dataflow("calls", calls() >> first >> second >> first)


MISTAKES: dict[str, Callable[[], object]] = {
    "it keeps state or timers, so it needs a key": lambda: dataflow(
        "calls", calls() >> Processor(Total()) >> OUT
    ),
    "no field 'lines'; its fields: line, seconds": lambda: dataflow(
        "calls", calls() >> hash_by("lines") >> Processor(Total()) >> OUT
    ),
    "first, second lead in a circle": _loop,
    "two groupings after 'calls'": lambda: calls() >> shuffle() >> local(),
    "the grouping after 'calls' leads to nothing": lambda: dataflow("calls", calls() >> shuffle()),
    "nothing leads to it: begin with an Input": lambda: dataflow("calls", Processor(Longer()) >> OUT),
    "nothing comes out of the Output 'out'": lambda: dataflow("calls", calls() >> OUT >> Processor(Longer())),
    "need the same grouping": lambda: dataflow(
        "calls",
        calls() >> hash_by("line") >> (total := Processor(Total())) >> OUT,
        calls(step="more") >> global_() >> total,
    ),
    "two steps are named 'calls'": lambda: dataflow("calls", calls() >> OUT, calls() >> OUT),
    "parallelism=0 is not 1 to 247": lambda: Processor(Longer(), parallelism=0),
    "records of several types: Call and str": lambda: dataflow(
        "calls", (source := calls()) >> OUT, source >> global_() >> Processor(Total()) >> OUT
    ),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_one_sentence(sentence: str) -> None:
    with pytest.raises(FlowError) as caught:
        MISTAKES[sentence]()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
