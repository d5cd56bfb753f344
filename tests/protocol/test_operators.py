"""Each operator by a short story: a few records in, what comes out, on the in-process runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pytest

from geartrain import Context, Flow, Record, State, Stream, Table, Task
from geartrain.errors import FlowError
from geartrain.records.event_time import END_OF_TIME
from geartrain.source import Reject
from geartrain.testing import ABORT, EOF, RunAbortedError, Saved, TestingSink, TestingSource, run_flow
from tests.reference.errors import FLOAT_DIVIDED


class Step(Record):
    foot: str
    metres: float


class Walked(State):
    metres: float = 0.0


class Total(Task[Step, Step]):
    state: ClassVar[type[Walked]] = Walked

    def on_next(self, value: Step, ctx: Context[Step, Walked]) -> None:
        ctx.state.metres += value.metres
        ctx.emit(Step(value.foot, ctx.state.metres))
        if value.metres < 0:
            raise ValueError("nobody walks a negative way")


def walk(*items: object) -> tuple[Flow, Stream[Step]]:
    flow = Flow("walk")
    steps = flow.source("steps", TestingSource(items=items), out=Step, partitioned_by="foot")
    return flow, steps


LEFT, RIGHT = Step("left", 1.0), Step("right", 2.0)


def test_map_changes_each_record_and_keeps_its_time() -> None:
    def longer(step: Step) -> Step:
        return Step(step.foot, step.metres + 1)

    flow, steps = walk((10, LEFT), (20, RIGHT))
    steps.map(longer).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(10, Step("left", 2.0)), (20, Step("right", 3.0))]


def test_a_function_that_raises_makes_a_dead_letter_and_the_rest_goes_on() -> None:
    def inverse(step: Step) -> Step:
        return Step(step.foot, 1 / step.metres)

    flow, steps = walk((1, LEFT), (2, Step("left", 0.0)), (3, RIGHT))
    steps.map(inverse).sink("out", out := TestingSink("out"))
    letters = run_flow(flow).dead_letters
    assert [time for time, _ in out.records] == [1, 3]
    assert [(x.step, x.reason, x.raw) for x in letters] == [
        ("inverse", FLOAT_DIVIDED, b'{"foot":"left","metres":0.0}')
    ]


def test_flat_map_gives_any_number_of_records_at_the_time_of_the_one() -> None:
    def halves(step: Step) -> Iterable[Step]:
        return [] if step.metres < 2 else [Step(step.foot, step.metres / 2)] * 2

    flow, steps = walk((1, LEFT), (2, RIGHT))
    steps.flat_map(halves).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(2, Step("right", 1.0)), (2, Step("right", 1.0))]


def test_filter_keeps_what_is_true() -> None:
    flow, steps = walk((1, LEFT), (2, RIGHT))
    steps.filter(lambda step: step.metres > 1, name="far").sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(2, RIGHT)]


def test_process_keeps_a_state_for_each_key() -> None:
    flow, steps = walk((1, LEFT), (2, RIGHT), (3, LEFT))
    steps.key_by("foot").process("total", Total()).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(1, LEFT), (2, RIGHT), (3, Step("left", 2.0))]


@pytest.mark.parametrize("rows_max", [1, 2, 256])
def test_a_call_that_raises_leaves_no_trace_but_a_dead_letter(rows_max: int) -> None:
    flow, steps = walk((1, LEFT), (2, Step("left", -5.0)), (3, LEFT), (4, RIGHT))
    steps.key_by("foot").process("total", Total()).sink("out", out := TestingSink("out"))
    results = run_flow(flow, rows_max=rows_max)
    assert out.records == [(1, LEFT), (3, Step("left", 2.0)), (4, RIGHT)]
    assert [x.reason for x in results.dead_letters] == ["ValueError: nobody walks a negative way"]


def test_a_value_that_does_not_fit_its_type_is_a_dead_letter() -> None:
    def count(step: Step) -> int:
        return 2**63 if step.metres > 1 else 5

    flow, steps = walk((1, LEFT), (2, RIGHT), (3, Step("left", "far")))  # type: ignore[arg-type]
    steps.map(count).sink("out", out := TestingSink("out"))
    results = run_flow(flow)
    assert out.records == [(1, 5)]
    assert sorted(x.reason for x in results.dead_letters) == [
        "field metres must be float, got 'far'",
        "field value = 9223372036854775808 does not fit into 64 bits",
    ]


def test_a_rejected_row_and_a_time_at_the_end_of_time_are_dead_letters_of_the_source() -> None:
    flow, steps = walk((1, LEFT), Reject(1, "walk.csv:3: no number", b"left,?"), (END_OF_TIME, RIGHT))
    steps.sink("out", out := TestingSink("out"))
    results = run_flow(flow)
    assert out.records == [(1, LEFT)]
    assert [(x.step, x.raw) for x in results.dead_letters] == [
        ("steps", b"left,?"),
        ("steps", b'{"foot":"right","metres":2.0}'),
    ]


def test_lateness_is_decided_at_birth_by_the_bound_of_the_split() -> None:
    source = TestingSource[Step](
        items=[(100, LEFT), (95, LEFT), (94, RIGHT), (100, RIGHT)], out_of_orderness_us=5
    )
    flow = Flow("late")
    flow.source("steps", source, out=Step).sink("out", out := TestingSink("out"))
    results = run_flow(flow)
    assert out.records == [(100, LEFT), (95, LEFT), (100, RIGHT)]
    assert [x.raw for x in results.late] == [b'{"foot":"right","metres":2.0}']


def test_a_crashed_run_resumes_where_its_last_commit_was() -> None:
    items = [(1, LEFT), (2, LEFT), ABORT, (3, LEFT), EOF, (4, LEFT)]
    flow, steps = walk(*items)
    steps.key_by("foot").process("total", Total()).sink("out", TestingSink("out"))
    saved = Saved()
    with pytest.raises(RunAbortedError):
        run_flow(flow, saved, rows_max=1)
    assert [v.metres for _, v in saved.results.tables["out"]] == [1.0, 2.0]
    run_flow(flow, saved)
    assert [v.metres for _, v in saved.results.tables["out"]] == [1.0, 2.0, 3.0]
    run_flow(flow, saved)
    assert [v.metres for _, v in saved.results.tables["out"]] == [1.0, 2.0, 3.0, 4.0]


def test_a_keyed_task_on_keys_of_several_splits_gets_its_records_in_order() -> None:
    flow, steps = walk((2, LEFT), (2, RIGHT), (3, LEFT))
    steps.key_by(lambda step: step.foot, name="by_foot").process("total", Total()).sink(
        "out", TestingSink("t")
    )
    assert [step.id for step in flow.graph().steps] == ["steps", "by_foot", "total_order", "total", "out"]
    assert len(run_flow(flow).tables["out"]) == 3


def test_mistakes_in_a_flow_say_what_to_write() -> None:
    flow, steps = walk((1, LEFT))
    with pytest.raises(FlowError, match=r"needs a name: write \.map\(\.\.\., name="):
        steps.map(lambda step: step, out=Step)
    with pytest.raises(FlowError, match=r"annotate the function's return or pass out="):
        steps.map(lambda step: step, name="same")
    with pytest.raises(FlowError, match="Step has no field 'feet'; its fields: foot, metres"):
        steps.key_by("feet")
    with pytest.raises(FlowError, match="two steps are named 'steps'"):
        flow.source("steps", TestingSource[Step](), out=Step)
    with pytest.raises(FlowError, match=r"no sink: end a stream with \.sink"):
        flow.graph()
    steps.sink("first", Table("walked"))
    steps.sink("second", Table("Walked"))
    with pytest.raises(FlowError, match="sinks 'first' and 'second' are both table 'Walked': give one"):
        flow.graph()
    with pytest.raises(FlowError, match="step id 'a step'"):
        flow.source("a step", TestingSource[Step](), out=Step)
    with pytest.raises(FlowError, match=r"field seen: set.*is not a field type"):
        flow.source("sets", TestingSource[Odd](), out=Odd)


class Odd(Record):
    seen: set[int]


class Hopeless(Task[Step, Step]):
    state: ClassVar[type[object]] = object

    def on_next(self, value: Step, ctx: Context[Step, object]) -> None:
        ctx.emit(value)


def test_a_state_that_cannot_be_saved_is_refused_where_the_flow_is_written() -> None:
    _, steps = walk((1, LEFT))
    with pytest.raises(
        FlowError, match=r"step 'hopeless': object cannot be a state .* use a geartrain.State"
    ):
        steps.key_by("foot").process("hopeless", Hopeless())
