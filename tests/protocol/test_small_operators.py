"""merge, split, iterate, log and the late stream, each by a short story on the in-process runtime."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, Record, SourceStream, Task
from geartrain.errors import FlowError
from geartrain.planning import choose_cut, legal_cuts, make_plan
from geartrain.records.batch import Origin
from geartrain.runtime.local import LocalRun
from geartrain.testing import ABORT, RunAbortedError, Saved, TestingSink, TestingSource, run_flow
from tests.reference.errors import FLOAT_DIVIDED


class Step(Record):
    foot: str
    metres: float


LEFT, RIGHT = Step("left", 1.0), Step("right", 2.0)


def walk(
    *items: object, bound_us: int = 0, step: str = "steps", flow: Flow | None = None
) -> tuple[Flow, SourceStream[Step]]:
    flow = Flow("walk") if flow is None else flow
    source: TestingSource[Step] = TestingSource(items=items, out_of_orderness_us=bound_us)
    return flow, flow.source(step, source, out=Step, partitioned_by="foot")


class Count(Task[Step, int]):
    state: ClassVar[type[int]] = int

    def on_next(self, value: Step, ctx: Context[int, int]) -> None:
        ctx.state += 1
        ctx.emit(ctx.state)


def origins(flow: Flow, sink: str) -> list[tuple[int, Origin]]:
    async def collect() -> list[tuple[int, Origin]]:
        rows = []
        async for output in LocalRun(flow.graph()).outputs():
            for batch in output.batches.get(sink, ()):
                rows += [(batch.times[row], batch.origin(row)) for row in range(len(batch))]
        return sorted(rows)

    return asyncio.run(collect())


def test_merge_puts_streams_on_one_and_tells_their_records_apart() -> None:
    flow, steps = walk((1, LEFT), (3, RIGHT))
    _, more = walk((2, LEFT), step="more", flow=flow)
    steps.merge("both", more, steps).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert sorted(out.records, key=lambda row: row[0]) == [
        (1, LEFT),
        (1, LEFT),
        (2, LEFT),
        (3, RIGHT),
        (3, RIGHT),
    ]
    assert origins(flow, "out") == [
        (1, Origin("steps/local", 0, b"\x00")),
        (1, Origin("steps/local", 0, b"\x02")),
        (2, Origin("more/local", 0, b"\x01")),
        (3, Origin("steps/local", 1, b"\x00")),
        (3, Origin("steps/local", 1, b"\x02")),
    ]


@pytest.mark.parametrize("rows_max", [1, 256])
def test_a_task_below_a_merge_sees_both_streams_in_order(rows_max: int) -> None:
    class Times(Task[Step, str]):
        def on_next(self, value: Step, ctx: Context[str, None]) -> None:
            ctx.emit(f"{value.foot} at {ctx.event_time}")

    flow, steps = walk((1, LEFT), (5, LEFT), (9, LEFT))
    _, more = walk((2, LEFT), ABORT, (3, LEFT), (8, LEFT), step="more", flow=flow)
    merged = steps.merge("both", more).key_by("foot").process("times", Times())
    merged.sink("out", TestingSink("out"))
    saved = Saved()
    with pytest.raises(RunAbortedError):
        run_flow(flow, saved, rows_max=rows_max)
    found = run_flow(flow, saved, rows_max=rows_max).tables["out"]
    assert [text for _, text in found] == [f"left at {time}" for time in (1, 2, 3, 5, 8, 9)]


def test_merge_takes_streams_of_one_type() -> None:
    _, steps = walk()
    lengths = steps.map(lambda step: step.metres, name="lengths", out=float)
    with pytest.raises(
        FlowError, match="merge takes streams of one type: 'steps' has Step, 'lengths' has float"
    ):
        steps.merge("both", lengths)  # type: ignore[arg-type]


def test_split_gives_each_branch_its_records() -> None:
    def side(step: Step) -> str:
        return "far" if step.metres / (2 - step.metres) > 3 else step.foot

    flow, steps = walk((1, LEFT), (2, RIGHT), (3, Step("right", 1.0)), (4, Step("left", 1.9)))
    branches = steps.split("side", side, ("left", "right"))
    for name, branch in branches.items():
        branch.sink(name, TestingSink(name))
    results = run_flow(flow)
    assert results.tables == {"left": [(1, LEFT)], "right": [(3, Step("right", 1.0))]}
    assert [(x.step, x.reason) for x in results.dead_letters] == [
        ("side_left", FLOAT_DIVIDED),
        ("side_left", "ValueError: there is no branch 'far', only left, right"),
    ]


@pytest.mark.parametrize("branches", [(), ("a", "a"), "ab"])
def test_a_split_names_its_branches_once(branches: Any) -> None:
    _, steps = walk()
    with pytest.raises(FlowError, match=r"^flow walk, step 'side': split takes the names of its branches"):
        steps.split("side", lambda step: step.foot, branches)


def double(step: Step) -> Step:
    if step.metres > 50:
        raise ValueError("too far")
    return Step(step.foot, step.metres * 2)


def test_iterate_repeats_its_body_until_it_is_enough() -> None:
    flow, steps = walk((1, LEFT), (2, Step("right", 20.0)), (3, Step("left", 0.1)), (4, Step("left", 51.0)))
    many = steps.iterate("far", double, until=lambda step: step.metres > 30, rounds_max=6)
    many.sink("out", out := TestingSink("out"))
    letters = run_flow(flow).dead_letters
    assert out.records == [(1, Step("left", 32.0)), (2, Step("right", 40.0)), (3, Step("left", 6.4))]
    assert [(x.step, x.reason) for x in letters] == [("far", "ValueError: too far")]


def test_iterate_without_a_predicate_does_all_its_rounds() -> None:
    flow, steps = walk((1, LEFT))
    steps.iterate("far", double, rounds_max=3).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(1, Step("left", 8.0))]
    with pytest.raises(FlowError, match="rounds_max=0: the body runs at least once"):
        steps.iterate("never", double, rounds_max=0)


@pytest.mark.parametrize("rows_max", [1, 2, 256])
def test_log_writes_what_passes_and_changes_nothing(rows_max: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "geartrain.flow.seen")
    flow, steps = walk(*((time, Step("a\x1b[2J", time)) for time in range(5)))
    counted = steps.key_by("foot").log("seen", every=2).process("count", Count())
    counted.sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert out.records == [(time, time + 1) for time in range(5)]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1] == r'seen 1970-01-01T00:00:00.000002Z: {"foot":"a\u001b[2J","metres":2.0}'
    assert len(lines) == 3
    assert "count" in choose_cut(flow.graph(), "edge").edge  # the keys are still local to the device
    with pytest.raises(FlowError, match="every=0: write 1 to log each record"):
        steps.log("none", every=0)


@pytest.mark.parametrize("rows_max", [1, 256])
def test_late_records_are_a_stream_of_their_own(rows_max: int) -> None:
    items = [(10, LEFT), (4, RIGHT), (8, LEFT), (2, Step("left", "far")), (1, LEFT)]  # type: ignore[arg-type]
    flow, steps = walk(*items, bound_us=3)
    steps.sink("out", out := TestingSink("out"))
    steps.late().map(lambda step: step.metres, name="metres", out=float).sink(
        "late", late := TestingSink("late")
    )
    results = run_flow(flow, rows_max=rows_max)
    assert out.records == [(10, LEFT), (8, LEFT)]
    assert late.records == [(4, 2.0), (1, 1.0)]
    assert results.late == []
    assert [(x.step, x.reason) for x in results.dead_letters] == [
        ("steps", "field metres must be float, got 'far'")
    ]
    assert origins(flow, "late") == [(1, Origin("steps/local", 4)), (4, Origin("steps/local", 1))]


def test_without_a_late_stream_late_records_go_to_their_table() -> None:
    flow, steps = walk((10, LEFT), (4, RIGHT))
    steps.sink("out", TestingSink("out"))
    assert [(x.step, x.raw) for x in run_flow(flow).late] == [("steps", b'{"foot":"right","metres":2.0}')]


def test_late_records_may_not_reach_a_state() -> None:
    flow, steps = walk()
    counted = steps.late().merge("all", steps).key_by("foot").process("count", Count())
    counted.sink("out", TestingSink("out"))
    with pytest.raises(FlowError, match="step 'count': it keeps state in the order of event time"):
        flow.graph()


def test_a_late_stream_begins_where_its_records_are_born() -> None:
    flow, steps = walk()
    late = steps.late()
    late.sink("out", TestingSink("out"))
    graph = flow.graph()
    assert all("steps_late" in cut.edge for cut in legal_cuts(graph))
    assert next(c.id for c in make_plan(graph, "cloud").channels) == "steps_late"
    with pytest.raises(FlowError, match="a late step always stands on the edge tier"):
        late.at("cloud")


def test_a_ttl_is_longer_than_nothing() -> None:
    _, steps = walk()
    with pytest.raises(FlowError, match="must be longer than nothing"):
        steps.key_by("foot").process("count", Count(), ttl=timedelta(-1))


def test_distinct_lets_the_first_of_each_kind_pass_and_forgets_it_after_its_time() -> None:
    """Also through a stop in the middle."""
    far = Step("left", 9.0)
    items = [(1, LEFT), (2, LEFT), (3, RIGHT), (4, far), (11, LEFT), ABORT, (20, LEFT), (30, LEFT), (32, far)]
    for fields, expected in (
        ([], [(1, LEFT), (3, RIGHT), (30, LEFT)]),
        (["metres"], [(1, LEFT), (3, RIGHT), (4, far), (30, LEFT), (32, far)]),
    ):
        flow, steps = walk(*items)
        once = steps.key_by("foot").distinct("once", ttl=timedelta(microseconds=10), fields=fields)
        once.sink("out", TestingSink("out"))
        saved = Saved()
        with pytest.raises(RunAbortedError):
            run_flow(flow, saved)
        assert sorted(run_flow(flow, saved).tables["out"], key=lambda row: row[0]) == expected
    keyed = walk()[1].key_by("foot")
    with pytest.raises(FlowError, match="ttl=0:00:00 must be longer than nothing"):
        keyed.distinct("never", ttl=timedelta())
    with pytest.raises(FlowError, match="there is no field 'feet'; its fields: foot, metres"):
        keyed.distinct("never", ttl=timedelta(1), fields=["feet"])


def test_a_task_behind_distinct_stands_on_the_device() -> None:
    flow, steps = walk((1, LEFT))
    once = steps.key_by("foot").distinct("once", ttl=timedelta(hours=1), fields=["metres"])
    once.key_by("foot", name="by_foot").process("count", Count()).sink("out", TestingSink("out"))
    assert {"once", "count"} <= choose_cut(flow.graph(), "edge").edge
