"""States that a task makes of those of its former types: by table, and what a flow may say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from geartrain import Context, Flow, Record, State, Task
from geartrain.errors import FlowError, SchemaError
from geartrain.planning import make_plan
from geartrain.revision import Revision, change_of, revision_of
from geartrain.state.keyed import NEVER, due_of, saved_cell
from geartrain.tasks.migration import UNKNOWN_TTL, form_of, migrated
from geartrain.tasks.timed_calls import cell_type
from geartrain.testing import TestingSink, TestingSource

Functions = Mapping[Any, Callable[[Any], Any]]


class Reading(Record):
    sensor: str
    celsius: float


class Seen(State):
    count: int = 0


class Mean(State):
    count: int = 0
    total: float = 0.0


class Span(State):
    count: int = 0
    low: float = 0.0
    high: float = 0.0


def to_mean(seen: Seen) -> Mean:
    return Mean(seen.count, 10 / (seen.count - 3))


def to_span(mean: Mean) -> Span:
    return Span(mean.count, 0, mean.total)


class Counting(Task[Reading, Reading]):
    state: ClassVar[type] = int

    def on_next(self, value: Reading, ctx: Context[Reading, Any]) -> None:
        ctx.emit(value)


class Spanning(Counting):
    state: ClassVar[type] = Span
    migrate: ClassVar[Functions] = {int: Seen, Seen: to_mean, Mean: to_span}


class Ringing(Spanning):
    def on_notify(self, time: int, ctx: Context[Reading, Any]) -> None:
        pass


class Idle(Task[Reading, Reading]):
    def on_next(self, value: Reading, ctx: Context[Reading, Any]) -> None:
        ctx.emit(value)


def timed_cell(state: Any) -> bytes:
    of: Any = None if state is None else type(state)
    kind = cell_type(of)
    cell = kind(state=state, timers=[70, 40], touched=30, placed_time=20, placed=2)
    return saved_cell(40, msgspec.msgpack.encode(cell))


def plain(value: Any) -> bytes:
    return saved_cell(NEVER, msgspec.msgpack.encode(value))


def flow_of(task: Task[Any, Any]) -> Flow:
    flow = Flow("cold")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading, partitioned_by="sensor")
    readings.key_by("sensor").process("spans", task, out=Reading).sink("out", TestingSink("out"))
    return flow


def document(task: Task[Any, Any]) -> Revision:
    return revision_of("cold:flow", make_plan(flow_of(task).graph(), "cloud"))


@pytest.mark.parametrize(
    ("former", "value", "span"),
    [
        (int, 5, Span(5, 0.0, 5.0)),
        (Seen, Seen(5), Span(5, 0.0, 5.0)),
        (Mean, Mean(5, 2.5), Span(5, 0.0, 2.5)),
    ],
)
def test_a_state_goes_from_type_to_type_until_it_is_of_the_last(former: Any, value: Any, span: Span) -> None:
    made = migrated("spans", Spanning(), form_of(former), plain(value), timed=False)
    assert msgspec.msgpack.decode(made[8:], type=Span) == span
    assert due_of(made) == NEVER


def test_timers_and_what_was_emitted_stay_beside_the_state() -> None:
    made = migrated("spans", Ringing(), form_of(Seen, timed=True), timed_cell(Seen(5)), timed=True)
    found = msgspec.msgpack.decode(made[8:], type=cell_type(Span))
    assert (due_of(made), found.state) == (40, Span(5, 0.0, 5.0))
    assert (found.timers, found.touched, found.placed_time, found.placed) == ([70, 40], 30, 20, 2)


def test_a_state_of_which_none_can_be_made_says_why() -> None:
    with pytest.raises(SchemaError, match="step 'spans': its migrate has raised: ZeroDivisionError"):
        migrated("spans", Spanning(), form_of(Seen), plain(Seen(3)), timed=False)
    with pytest.raises(SchemaError, match="cannot be read"):
        migrated("spans", Spanning(), form_of(Mean), plain("text"), timed=False)
    with pytest.raises(SchemaError, match="its migrate does not name the type of the saved state"):
        migrated("spans", Spanning(), form_of(float), plain(1.0), timed=False)


@pytest.mark.parametrize("says", [True, False])
def test_a_task_that_gets_timers_keeps_its_states_and_one_without_loses_the_timers_alone(says: bool) -> None:
    """says: whether the form that was noted tells of timers as they were."""
    gained = migrated("spans", Ringing(), form_of(Span, timed=not says), plain(Span(5, 1.0, 2.0)), timed=True)
    found = msgspec.msgpack.decode(gained[8:], type=cell_type(Span))
    assert (due_of(gained), found.state, found.timers) == (NEVER, Span(5, 1.0, 2.0), [])
    assert (found.touched, found.placed_time, found.placed) == (None, None, 0)
    lost = migrated("spans", Spanning(), form_of(Seen, timed=says), timed_cell(Seen(5)), timed=False)
    assert (due_of(lost), msgspec.msgpack.decode(lost[8:], type=Span)) == (NEVER, Span(5, 0.0, 5.0))
    same = timed_cell(Span(5, 1.0, 2.0))
    assert migrated("spans", Ringing(), form_of(Span, timed=says), same, timed=True) == same


def test_timers_of_a_task_that_keeps_nothing_any_more_go() -> None:
    with pytest.raises(SchemaError, match="its task keeps nothing"):
        migrated("bells", Idle(), form_of(None, timed=True), timed_cell(None), timed=False)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({Seen: None}, "is no function of the former state"),
        ({Span: to_span}, "two types of the layout"),
        ({Reading: to_span}, "cannot be a state"),
    ],
)
def test_a_flow_says_former_types_that_can_be_meant(functions: Functions, words: str) -> None:
    class Wrong(Spanning):
        migrate: ClassVar[Functions] = functions

    with pytest.raises(FlowError, match=words):
        flow_of(Wrong())


def test_an_update_keeps_the_state_of_a_type_that_the_task_names_and_of_no_other() -> None:
    old, new = document(Counting()), document(Spanning())
    (step,) = [one for one in change_of(old, new).steps if one.step == "spans"]
    assert (step.what, step.state) == ("replaced", "kept")
    assert any(clause.startswith("its state type was int, is now ") for clause in step.says)
    assert not change_of(old, new).refusals
    (refusal,) = change_of(new, old).refusals  # no way back where none is named
    assert "its state type is another one" in refusal
    assert Revision.from_json(new.to_json()) == new
    assert "migrates" not in old.to_json()
    assert form_of(Span) != form_of(Mean)


def test_a_time_to_live_counts_from_the_last_call_whichever_it_had_before() -> None:
    cell = timed_cell(Span(5, 1.0, 2.0))
    kept = msgspec.msgpack.decode(cell[8:], type=cell_type(Span))
    kept.touched, kept.timers = 100, [90, 60]
    cell = saved_cell(60, msgspec.msgpack.encode(kept))

    def due(ttl_us: int | None, form: str, *timers: int) -> int:
        kept.timers = list(timers)
        held = saved_cell(7, msgspec.msgpack.encode(kept))
        made = migrated("spans", Ringing(), form, held, timed=True, ttl_us=ttl_us)
        assert made[8:] == held[8:]
        return due_of(made)

    short, long = (form_of(Span, timed=True, ttl_us=ttl_us) for ttl_us in (20, 1_000))
    assert [due(20, long), due(1_000, short), due(None, short)] == [120, 1_100, NEVER]
    assert [due(20, long, 110), due(20, long, 130), due(None, long, 130)] == [110, 120, 130]
    unsaid = form_of(Span, timed=True)
    assert [due(20, unsaid), due(20, unsaid + UNKNOWN_TTL)] == [120, 120]
    assert due(20, short) == 7, "what is of the form already stays"
    seen = msgspec.msgpack.decode(timed_cell(Seen(5))[8:], type=cell_type(Seen))
    seen.touched, seen.timers = 100, []
    former = saved_cell(1_100, msgspec.msgpack.encode(seen))
    form = form_of(Seen, timed=True, ttl_us=1_000)
    made = migrated("spans", Ringing(), form, former, timed=True, ttl_us=20)
    assert due_of(made) == 120


def test_of_a_task_without_state_the_places_taken_go_with_the_watermark() -> None:
    kept = cell_type(None)(placed_time=40, placed=2, touched=40)
    cell = saved_cell(41, msgspec.msgpack.encode(kept))
    form = form_of(None, timed=True, ttl_us=500)
    for arrival, due in ((False, 41), (True, 60)):
        made = migrated("bells", Idle(), form, cell, timed=True, ttl_us=20, arrival=arrival)
        assert due_of(made) == due
