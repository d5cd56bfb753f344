"""Tasks by short stories: timers, what a raise leaves, refusals, time to live, states to begin with."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar, Literal

import pytest

from geartrain import Context, Flow, KeyedStream, Record, State, Task
from geartrain.errors import FlowError, StepError
from geartrain.graph.graph import Graph
from geartrain.records.batch import child_path
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.local import LocalRun
from geartrain.tasks import timed_calls
from geartrain.testing import (
    ABORT,
    FakeClock,
    RunAbortedError,
    Saved,
    SeededRandomness,
    TestingSink,
    TestingSource,
    run_flow,
)

ALL_SIZES = pytest.mark.parametrize("rows_max", [1, 2, 256])


class Ring(Record):
    door: str
    wait: int = 0


class Rung(State):
    count: int = 0


def rings(*items: Any, bound_us: int = 0) -> tuple[Flow, KeyedStream[Any, Ring]]:
    flow = Flow("bells")
    source: TestingSource[Ring] = TestingSource(items=items, out_of_orderness_us=bound_us)
    return flow, flow.source("rings", source, out=Ring, partitioned_by="door").key_by("door")


class Echo(Task[Ring, str]):
    """Says each ring, and once more after its wait."""

    state: ClassVar[type[Rung]] = Rung

    def on_next(self, value: Ring, ctx: Context[str, Rung]) -> None:
        ctx.state.count += 1
        ctx.notify_at(ctx.event_time + value.wait)
        ctx.emit(f"{ctx.key} {ctx.state.count}")

    def on_notify(self, time: int, ctx: Context[str, Rung]) -> None:
        ctx.emit(f"{ctx.key} echo of {ctx.state.count}")


@ALL_SIZES
def test_timers_fire_in_order_of_time_before_the_next_record(rows_max: int) -> None:
    flow, keyed = rings((10, Ring("a", 5)), (12, Ring("a", 1)), (20, Ring("a", 100)), (30, Ring("b")))
    keyed.process("echo", Echo()).sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert sorted(out.records) == [
        (10, "a 1"),
        (12, "a 2"),
        (13, "a echo of 2"),
        (15, "a echo of 2"),
        (20, "a 3"),
        (30, "b 1"),
        (30, "b echo of 1"),
        (120, "a echo of 3"),
    ]


def answers(graph: Graph, rows_max: int) -> list[tuple[int, str, int, bytes, Any]]:
    """What reached the sink `out`, with its places in canonical order."""

    async def collect() -> list[tuple[int, str, int, bytes, Any]]:
        rows = []
        async for output in LocalRun(graph).outputs(rows_max):
            for batch in output.batches.get("out", ()):
                for row in range(len(batch)):
                    origin = batch.origin(row)
                    at = (batch.times[row], origin.name, origin.number, origin.path)
                    rows.append((*at, batch.values[row]))
        return sorted(rows)

    return asyncio.run(collect())


@ALL_SIZES
def test_a_result_of_a_timer_is_placed_by_its_key_and_a_running_count(rows_max: int) -> None:
    flow, keyed = rings((10, Ring("a", 5)), (15, Ring("a")), (16, Ring("a")))
    keyed.process("echo", Echo()).sink("out", TestingSink("out"))
    key = encode_key("a")
    assert [row[:4] for row in answers(flow.graph(), rows_max) if row[1] == "echo"] == [
        (15, "echo", 0, key + child_path(b"", 0)),
        (15, "echo", 0, key + child_path(b"", 1)),
        (16, "echo", 0, key + child_path(b"", 0)),
    ]


class Again(Task[Ring, int]):
    """Sets a timer from a timer: the same time once more, then later ones."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Ring, ctx: Context[int, int]) -> None:
        ctx.notify_at(ctx.event_time - 1_000)  # in the past, so now
        ctx.notify_at(ctx.event_time)

    def on_notify(self, time: int, ctx: Context[int, int]) -> None:
        ctx.state += 1
        ctx.emit(ctx.state)
        if ctx.state < 4:
            ctx.notify_at(0 if ctx.state == 1 else time + 10)


@ALL_SIZES
def test_a_timer_set_by_a_timer_fires_in_the_same_go_if_it_is_due(rows_max: int) -> None:
    flow, keyed = rings((10, Ring("a")), (25, Ring("b")))
    keyed.process("again", Again()).sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert sorted(out.records) == [
        (10, 1),
        (10, 2),
        (20, 3),
        (25, 1),
        (25, 2),
        (30, 4),
        (35, 3),
        (45, 4),
    ]


class Forever(Task[Ring, int]):
    def on_next(self, value: Ring, ctx: Context[int, None]) -> None:
        ctx.notify_at(ctx.event_time)

    def on_notify(self, time: int, ctx: Context[int, None]) -> None:
        ctx.notify_at(time)


def test_timers_without_end_stop_the_run_and_name_step_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_calls, "TIMERS_MAX", 1_000)
    flow, keyed = rings((10, Ring("front")))
    keyed.process("forever", Forever()).sink("out", TestingSink("out"))
    with pytest.raises(StepError, match="step 'forever': more than 1000 timers fired for the key 'front'"):
        run_flow(flow)


class Moody(Task[Ring, str]):
    """Raises in a timer after it emitted, changed its state and set another timer."""

    state: ClassVar[type[Rung]] = Rung

    def on_next(self, value: Ring, ctx: Context[str, Rung]) -> None:
        ctx.state.count += 1
        ctx.notify_at(ctx.event_time + value.wait)

    def on_notify(self, time: int, ctx: Context[str, Rung]) -> None:
        ctx.state.count += 10
        ctx.emit(f"{ctx.key} {ctx.state.count}")
        if ctx.key == "bad":
            ctx.notify_at(time + 1)
            raise ValueError("not today")


@ALL_SIZES
def test_a_timer_that_raises_leaves_only_a_dead_letter(rows_max: int) -> None:
    flow, keyed = rings(
        (1, Ring("bad", 1)), (2, Ring("good", 1)), (5, Ring("bad", END_OF_TIME)), (6, Ring("good"))
    )
    keyed.process("moody", Moody()).sink("out", out := TestingSink("out"))
    letters = run_flow(flow, rows_max=rows_max).dead_letters
    assert sorted(out.records) == [(3, "good 11"), (6, "good 22")]
    assert sorted((x.step, x.reason, x.raw) for x in letters) == [
        ("moody", "ValueError: not today", b'{"timer":2,"key":"bad"}'),
        (
            "moody",
            f"ValueError: notify_at({END_OF_TIME + 5}) is beyond the end of time, {END_OF_TIME}",
            b'{"door":"bad","wait":7258118400000000}',
        ),
    ]


def test_the_letters_of_two_timers_of_a_key_have_two_places() -> None:
    flow, keyed = rings((1, Ring("bad", 1)), (1, Ring("bad", 2)))
    keyed.process("moody", Moody()).sink("out", TestingSink("out"))
    graph = flow.graph()
    fragment = Fragment(graph, [s.id for s in graph.steps])
    places: list[bytes] = []

    async def collect() -> None:
        async for output in LocalRun(graph).outputs():
            for batch in output.batches.get("_dead_letters", ()):
                places.extend(batch.paths or [])

    asyncio.run(collect())
    key = encode_key("bad")
    assert places == [key + encode_key((time,)) + child_path(b"", 0) for time in (2, 3)]
    assert fragment.counters == {}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (3.5, "TypeError: notify_at takes microseconds since 1970 as an int, not float"),
        (True, "TypeError: notify_at takes microseconds since 1970 as an int, not bool"),
    ],
)
def test_a_timer_that_is_no_time_is_a_mistake_of_the_call(wrong: Any, reason: str) -> None:
    class Wrong(Echo):
        def on_next(self, value: Ring, ctx: Context[str, Rung]) -> None:
            ctx.notify_at(wrong)

    flow, keyed = rings((1, Ring("a")))
    keyed.process("wrong", Wrong()).sink("out", TestingSink("out"))
    assert [x.reason for x in run_flow(flow).dead_letters] == [reason]


def test_who_sets_a_timer_says_what_it_does() -> None:
    class Deaf(Task[Ring, str]):
        def on_next(self, value: Ring, ctx: Context[str, None]) -> None:
            ctx.notify_at(5)

    flow, keyed = rings((1, Ring("a")))
    keyed.process("deaf", Deaf()).sink("out", TestingSink("out"))
    assert [x.reason for x in run_flow(flow).dead_letters] == [
        "RuntimeError: Deaf sets a timer, but defines no on_notify(time, ctx) that it could call"
    ]


@ALL_SIZES
def test_timers_survive_a_crash(rows_max: int) -> None:
    items = [
        (10, Ring("a", 50)),
        ABORT,
        (20, Ring("b", 50)),
        ABORT,
        (65, Ring("a", 5)),
        ABORT,
        (90, Ring("b")),
    ]
    flow, keyed = rings(*items)
    keyed.process("echo", Echo()).sink("out", TestingSink("out"))
    saved = Saved()
    for _ in range(3):
        with pytest.raises(RunAbortedError):
            run_flow(flow, saved, rows_max=rows_max)
    found = run_flow(flow, saved, rows_max=rows_max).tables["out"]
    calm, keyed = rings(*(item for item in items if item is not ABORT))
    keyed.process("echo", Echo()).sink("out", TestingSink("out"))
    assert sorted(found) == sorted(run_flow(calm).tables["out"])
    assert (60, "a echo of 1") in found


def test_pending_timers_fire_at_the_end_of_time_and_none_is_beyond_it() -> None:
    flow, keyed = rings((10, Ring("a", END_OF_TIME - 10)))
    keyed.process("echo", Echo()).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(10, "a 1"), (END_OF_TIME - 1, "a echo of 1")]


def test_a_key_without_state_and_timers_keeps_nothing() -> None:
    class Chime(Task[Ring, str]):
        def on_next(self, value: Ring, ctx: Context[str, None]) -> None:
            ctx.notify_at(ctx.event_time + 1)

        def on_notify(self, time: int, ctx: Context[str, None]) -> None:
            ctx.emit("chime")

    flow, keyed = rings((10, Ring("a")), (20, Ring("b")))
    keyed.process("chime", Chime()).sink("out", out := TestingSink("out"))
    saved = Saved()
    run_flow(flow, saved, rows_max=1)
    assert out.records == [(11, "chime"), (21, "chime")]
    assert saved.state == {}


class Count(Task[Ring, str]):
    state: ClassVar[type[int]] = int

    def on_next(self, value: Ring, ctx: Context[str, int]) -> None:
        if value.wait < 0:
            raise ValueError("no")
        ctx.state += 1
        ctx.emit(f"{ctx.key} {ctx.state}")


@ALL_SIZES
def test_a_state_is_forgotten_when_its_time_to_live_is_over(rows_max: int) -> None:
    flow, keyed = rings(
        (0, Ring("a")), (9, Ring("a")), (18, Ring("a", -1)), (19, Ring("a")), (28, Ring("a")), (40, Ring("b"))
    )
    counted = keyed.process("count", Count(), ttl=timedelta(microseconds=10))
    counted.sink("out", out := TestingSink("out"))
    saved = Saved()
    run_flow(flow, saved, rows_max=rows_max)
    assert out.records == [(0, "a 1"), (9, "a 2"), (19, "a 1"), (28, "a 2"), (40, "b 1")]
    assert saved.state == {}


def test_timers_die_with_the_state_that_set_them_and_those_before_its_end_keep_it_alive() -> None:
    flow, keyed = rings((0, Ring("a", 12)), (1, Ring("b", 8)), (9, Ring("b", 20)), (50, Ring("a")))
    echo = keyed.process("echo", Echo(), ttl=timedelta(microseconds=10))
    echo.sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert sorted(out.records) == [
        (0, "a 1"),
        (1, "b 1"),
        (9, "b 2"),
        (9, "b echo of 1"),
        (50, "a 1"),
        (50, "a echo of 1"),
    ]


def test_keys_begin_with_the_states_that_they_are_given() -> None:
    flow, keyed = rings((0, Ring("a")), (1, Ring("a")), (2, Ring("b")), (30, Ring("a")))
    counted = keyed.process("count", Count(), initial={"a": 100}, ttl=timedelta(microseconds=10))
    counted.sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(0, "a 101"), (1, "a 102"), (2, "b 1"), (30, "a 101")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"initial": {"a": "many"}}, "the initial state of key 'a': Expected `int`, got `str`"),
        ({"initial": {1.5: 1}}, "the initial state of key 1.5: a key must be str, int, bool"),
        ({"ttl": timedelta(0)}, "ttl=0:00:00 must be longer than nothing"),
        ({"ttl": 5}, "ttl=5 must be a datetime.timedelta"),
        ({"order": "any"}, "order='any' must be 'canonical' or 'arrival'"),
    ],
)
def test_a_wrong_option_of_process_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    _, keyed = rings()
    with pytest.raises(FlowError, match=f"^flow bells, step 'count': {sentence}"):
        keyed.process("count", Count(), **options)


class Lived(Task[Ring, str]):
    """Notes its life in a list of its own."""

    seen: list[str]

    def on_start(self, ctx: Context[str, None]) -> None:
        self.seen.append("start")

    def on_next(self, value: Ring, ctx: Context[str, None]) -> None:
        self.seen.append(f"next {ctx.event_time}")

    def on_watermark(self, time: int, ctx: Context[str, None]) -> None:
        self.seen.append(f"watermark {time}")

    def on_stop(self, ctx: Context[str, None]) -> None:
        self.seen.append("stop")


def test_a_task_is_told_of_its_start_of_time_and_of_its_end() -> None:
    seen: list[str] = []
    flow, keyed = rings((5, Ring("a")), (9, Ring("a")))
    keyed.process("lived", Lived(seen=seen)).sink("out", TestingSink("out"))
    run_flow(flow, rows_max=1)
    assert seen == ["start", "next 5", "watermark 5", "next 9", f"watermark {END_OF_TIME}", "stop"]


Call = Literal["on_start", "on_watermark", "on_stop"]


@pytest.mark.parametrize("call", ["on_start", "on_watermark", "on_stop"])
@pytest.mark.parametrize("what", ["emit", "state", "key", "notify_at", "now_us", "random"])
def test_calls_without_a_key_refuse_what_would_show(call: Call, what: str) -> None:
    def touch(self: Task[Ring, str], *args: Any) -> None:
        touched = getattr(args[-1], what)
        if callable(touched):
            touched(*([5] if what in ("emit", "notify_at") else []))

    kind = type("Touching", (Count,), {call: touch})
    flow, keyed = rings((5, Ring("a")))
    keyed.process("touching", kind(), out=str).sink("out", TestingSink("out"))
    with pytest.raises(StepError, match=rf"^step 'touching': Touching\.{call} raised RuntimeError: "):
        run_flow(flow)


class Dice(Task[Ring, str]):
    replayable: ClassVar[bool] = False

    def on_next(self, value: Ring, ctx: Context[str, None]) -> None:
        ctx.metrics.add("thrown")
        ctx.log("thrown\x1b[2J")
        ctx.emit(f"{ctx.now_us()} {0 <= ctx.random() <= 1}")
        if value.wait:
            raise ValueError("off the table")

    def on_watermark(self, time: int, ctx: Context[str, None]) -> None:
        ctx.emit("time")


def test_a_task_that_says_so_may_read_the_clock_and_is_called_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "geartrain.task.dice")
    flow, keyed = rings((5, Ring("a")), (6, Ring("a", 1)), (7, Ring("a")))
    keyed.process("dice", Dice()).sink("out", TestingSink("out"))
    graph = flow.graph()
    assert not graph["dice"].operator.replayable
    run = LocalRun(graph, clock=FakeClock(77), randomness=SeededRandomness(1))

    async def collect() -> list[Any]:
        rows = []
        async for output in run.outputs():
            rows += [v for batch in output.batches.get("out", ()) for v in batch.values]
        return rows

    assert asyncio.run(collect()) == ["77 True", "77 True", "time"]
    assert run.fragment.counters == {"dice.thrown": 3}
    assert [record.getMessage() for record in caplog.records] == ["dice: thrown\\x1b[2J"] * 3


def test_the_clock_is_refused_to_any_other_task() -> None:
    class Late(Count):
        def on_next(self, value: Ring, ctx: Context[str, int]) -> None:
            ctx.emit(str(ctx.now_us()))

    flow, keyed = rings((5, Ring("a")))
    keyed.process("late", Late()).sink("out", TestingSink("out"))
    (letter,) = run_flow(flow).dead_letters
    assert letter.reason == (
        "RuntimeError: a task that reads the clock gives other results each time: "
        "write replayable: ClassVar[bool] = False in Late"
    )


def test_records_out_of_order_are_put_in_order_unless_arrival_is_asked_for() -> None:
    items = [(10, Ring("a", 1)), (8, Ring("a", 2)), (9, Ring("a", 3)), (20, Ring("a", 4))]

    class Waits(Task[Ring, int]):
        def on_next(self, value: Ring, ctx: Context[int, None]) -> None:
            ctx.emit(value.wait)

    class Unordered(TestingSource[Ring]):
        in_order: ClassVar[bool] = False

    found = {}
    for order in ("canonical", "arrival"):
        flow = Flow("bells")
        source: TestingSource[Ring] = Unordered(items=items, out_of_orderness_us=5)
        keyed = flow.source("rings", source, out=Ring).key_by("door")
        keyed.process("waits", Waits(), order=order).sink("out", out := TestingSink("out"))
        assert ("waits_order" in [s.id for s in flow.graph().steps]) == (order == "canonical")
        assert flow.graph()["waits"].operator.replayable == (order == "canonical")
        run_flow(flow)
        found[order] = [wait for _, wait in out.records]
    assert found == {"canonical": [2, 3, 1, 4], "arrival": [1, 2, 3, 4]}


@ALL_SIZES
def test_a_state_that_cannot_be_saved_is_found_even_when_it_is_forgotten_at_once(rows_max: int) -> None:
    class Spoils(Count):
        def on_next(self, value: Ring, ctx: Context[str, int]) -> None:
            ctx.state = "spoilt" if value.wait else ctx.state + 1  # type: ignore[assignment]
            ctx.emit(f"{ctx.key} {ctx.state}")

    flow, keyed = rings((0, Ring("a")), (1, Ring("a", 1)), (99, Ring("a")), (100, Ring("b", 1)))
    spoils = keyed.process("spoils", Spoils(), ttl=timedelta(microseconds=5))
    spoils.sink("out", out := TestingSink("out"))
    letters = run_flow(flow, rows_max=rows_max).dead_letters
    assert out.records == [(0, "a 1"), (99, "a 1")]
    assert len(letters) == 2
