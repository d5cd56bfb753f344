"""Windows by short stories: a few records in, what each window gives, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from geartrain import (
    Flow,
    KeyedStream,
    Record,
    State,
    Stream,
    agg,
    every_records,
    every_time,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.records.batch import Origin, child_path
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.local import LocalRun
from geartrain.testing import (
    ABORT,
    EOF,
    Results,
    RunAbortedError,
    Saved,
    TestingSink,
    TestingSource,
    run_flow,
)
from tests.reference.errors import FLOAT_DIVIDED

US = timedelta(microseconds=1)
TEN = tumbling(10 * US)


class Car(Record):
    lane: str
    speed: float | None
    plate: str = ""


class Traffic(Record):
    lane: str
    window_start: int
    window_end: int
    n: int
    fastest: float | None


class Numbered(Record):
    key: str
    n: int
    revision: int


def road(*items: object, bound: int = 0) -> tuple[Flow, KeyedStream[Any, Car]]:
    flow = Flow("road")
    source = TestingSource[Car](items=items, out_of_orderness_us=bound)
    return flow, flow.source("cars", source, out=Car).key_by("lane")


def at(time: int, lane: str = "left", speed: float | None = 1.0, plate: str = "") -> tuple[int, Car]:
    return time, Car(lane, speed, plate)


def ended(flow: Flow, stream: Stream[Any]) -> list[tuple[int, Any]]:
    stream.sink("out", TestingSink("out"))
    return run_flow(flow).tables["out"]


def traffic(flow: Flow, cars: KeyedStream[Any, Car], window: Any) -> list[tuple[int, ...]]:
    """(event time, window start, window end, count) of each window of traffic on the left lane."""
    out = cars.window(window).aggregate("traffic", out=Traffic, n=agg.count(), fastest=agg.max("speed"))
    return [(t, x.window_start, x.window_end, x.n) for t, x in ended(flow, out) if x.lane == "left"]


def test_a_tumbling_window_gives_one_result_a_key_at_its_last_microsecond() -> None:
    flow, cars = road(at(1, speed=3.0), at(5, "right", 9.0), at(9, speed=7.0), at(10, speed=2.0))
    out = cars.window(TEN).aggregate("traffic", out=Traffic, n=agg.count(), fastest=agg.max("speed"))
    assert sorted(ended(flow, out), key=lambda row: (row[0], row[1].lane)) == [
        (9, Traffic("left", 0, 10, 2, 7.0)),
        (9, Traffic("right", 0, 10, 1, 9.0)),
        (19, Traffic("left", 10, 20, 1, 2.0)),
    ]


def test_windows_before_1970_and_with_an_offset_are_aligned_by_floor_division() -> None:
    flow, cars = road(at(-11), at(-10), at(-1), at(0))
    assert traffic(flow, cars, TEN) == [(-11, -20, -10, 1), (-1, -10, 0, 2), (9, 0, 10, 1)]
    flow, cars = road(at(-1), at(2), at(3))
    assert traffic(flow, cars, tumbling(10 * US, offset=3 * US)) == [(2, -7, 3, 2), (12, 3, 13, 1)]


def test_a_record_is_in_every_sliding_window_that_holds_its_time_and_may_be_in_none() -> None:
    flow, cars = road(at(5), at(12))
    assert traffic(flow, cars, sliding(10 * US, 5 * US)) == [
        (9, 0, 10, 1),
        (14, 5, 15, 2),
        (19, 10, 20, 1),
    ]
    flow, cars = road(at(1), at(5), at(11))
    assert traffic(flow, cars, sliding(3 * US, 10 * US)) == [(2, 0, 3, 1), (12, 10, 13, 1)]


def test_a_session_ends_where_the_next_record_is_a_whole_gap_away() -> None:
    flow, cars = road(at(0), at(4), at(9), at(14))
    assert traffic(flow, cars, session(5 * US)) == [(8, 0, 9, 2), (13, 9, 14, 1), (18, 14, 19, 1)]


def test_a_record_that_comes_later_joins_two_sessions() -> None:
    flow, cars = road(at(0, speed=9.0), at(8), at(4), at(20), bound=10)
    windows = cars.window(session(5 * US))
    out = windows.aggregate("traffic", out=Traffic, n=agg.count(), fastest=agg.max("speed"))
    out.sink("out", TestingSink("out"))
    both = [(12, Traffic("left", 0, 13, 3, 9.0)), (24, Traffic("left", 20, 25, 1, 1.0))]
    for rows_max in (1, 256):
        assert run_flow(flow, rows_max=rows_max).tables["out"] == both


def test_the_global_window_ends_with_time() -> None:
    flow, cars = road(at(1), at(2, "right"), at(10**15))
    out = cars.window(global_window()).aggregate("all", out=Numbered, n=agg.count())
    assert ended(flow, out) == [
        (END_OF_TIME - 1, Numbered("left", 2, 0)),
        (END_OF_TIME - 1, Numbered("right", 1, 0)),
    ]


def test_a_window_that_reaches_beyond_the_end_of_time_fires_then() -> None:
    flow, cars = road(at(END_OF_TIME - 3))
    end = END_OF_TIME - 3 - (END_OF_TIME - 3) % 7 + 7
    assert traffic(flow, cars, tumbling(7 * US)) == [(min(end, END_OF_TIME) - 1, end - 7, end, 1)]


def test_a_result_has_the_key_and_the_window_in_its_origin() -> None:
    flow, cars = road(at(3))
    out = cars.window(TEN).aggregate("traffic", out=Traffic, n=agg.count(), fastest=agg.max("speed"))
    out.sink("out", TestingSink("out"))
    run = LocalRun(flow.graph())
    run.fragment.feed("cars", batch := _batch([at(3)]))
    assert len(batch) == 1
    run.fragment.advance("cars", 9)
    assert run.fragment.take().batches == {}
    run.fragment.advance("cars", 10)
    (found,) = run.fragment.take().batches["out"]
    path = encode_key("left") + encode_key((0,)) + child_path(b"", 0)
    assert (found.times, found.origin(0)) == ([9], Origin("traffic", 0, path))


def _batch(items: list[tuple[int, Car]]) -> Any:
    from geartrain.records.batch import Batch

    numbers = list(range(len(items)))
    return Batch([car for _, car in items], [t for t, _ in items], ["cars"] * len(items), numbers)


class Moments(Record):
    lane: str
    window_start: datetime
    window_end: datetime
    n: int
    known: int
    plates: int
    mean: float | None
    low: float | None
    sum: float | None
    first: str
    last: str
    best: list[str]


def test_several_aggregates_at_once_skip_none() -> None:
    flow, cars = road(at(3, speed=0.1, plate="b"), at(4, speed=None, plate="a"), at(5, speed=0.2, plate="b"))
    windows = cars.window(TEN)
    out = windows.aggregate(
        "moments",
        out=Moments,
        n=agg.count(),
        known=agg.count("speed"),
        plates=agg.count_distinct("plate"),
        mean=agg.mean("speed"),
        low=agg.min("speed"),
        sum=agg.sum("speed"),
        first=agg.first("plate"),
        last=agg.last("plate"),
        best=agg.top_n("speed", 2, give="plate"),
    )
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    middle, added = 0.15000000000000002, 0.30000000000000004
    assert ended(flow, out) == [
        (9, Moments("left", begin, begin + 10 * US, 3, 2, 2, middle, 0.1, added, "b", "b", ["b", "b"]))
    ]


def test_nothing_but_none_is_none_and_a_dead_letter_where_that_does_not_fit() -> None:
    class Fast(Record):
        lane: str
        speed: float | None

    class Sure(Record):
        lane: str
        speed: float

    flow, cars = road(at(1, speed=None))
    windows = cars.window(TEN)
    windows.aggregate("fast", out=Fast, speed=agg.max("speed")).sink("fast_out", TestingSink("fast"))
    windows.aggregate("sure", out=Sure, speed=agg.max("speed")).sink("sure_out", TestingSink("sure"))
    results = run_flow(flow)
    assert results.tables == {"fast_out": [(9, Fast("left", None))], "sure_out": []}
    assert [(x.step, x.reason, x.raw) for x in results.dead_letters] == [
        ("sure", "field speed is None but is not optional", b'{"lane":"left","speed":null}')
    ]


def test_early_results_come_with_every_n_records_and_are_numbered() -> None:
    flow, cars = road(*[at(t) for t in (1, 2, 3, 4, 5)], at(11))
    windows = cars.window(TEN)
    out = windows.aggregate(
        "seen", out=Numbered, early=every_records(2), n=agg.count(), key=agg.first("lane")
    )
    assert ended(flow, out) == [
        (2, Numbered("left", 2, 0)),
        (4, Numbered("left", 4, 1)),
        (9, Numbered("left", 5, 2)),
        (19, Numbered("left", 1, 0)),
    ]


def test_early_results_come_as_event_time_passes_only_where_something_changed() -> None:
    flow, cars = road(at(1), at(2), at(3), at(8), at(30, "right"))
    windows = cars.window(tumbling(20 * US))
    out = windows.aggregate("seen", out=Numbered, early=every_time(3 * US), n=agg.count())
    assert [(t, x) for t, x in ended(flow, out) if x.key == "left"] == [
        (2, Numbered("left", 2, 0)),
        (5, Numbered("left", 3, 1)),
        (8, Numbered("left", 4, 2)),
        (19, Numbered("left", 4, 3)),
    ]


def test_the_end_of_a_window_gives_its_last_result_and_no_early_one() -> None:
    for window in (TEN, session(8 * US)):
        flow, cars = road(at(0), at(7), at(30))
        windows = cars.window(window)
        out = windows.aggregate("seen", out=Numbered, early=every_time(5 * US), n=agg.count())
        assert [(x.n, x.revision) for _, x in ended(flow, out)][:2] == [(1, 0), (2, 1)]


def test_early_results_of_out_of_order_records_are_those_of_the_ordered_ones() -> None:
    rows: list[list[tuple[int, Any]]] = []
    for times, bound in (((1, 2, 3, 8, 12), 0), ((8, 3, 12, 1, 2), 12)):
        flow, cars = road(*[at(t) for t in times], bound=bound)
        windows = cars.window(session(5 * US))
        out = windows.aggregate("seen", out=Numbered, early=every_time(2 * US), n=agg.count())
        rows.append(sorted(ended(flow, out)))
    assert rows[0] == rows[1]
    assert [x.n for _, x in rows[0]] == [2, 3, 3, 1, 2, 2]


def slower(left: Car, right: Car) -> Car:
    if right.plate == "stolen":
        raise ValueError("no stolen cars")
    assert left.speed is not None
    assert right.speed is not None
    return left if left.speed <= right.speed else right


def test_reduce_of_a_window_takes_its_records_in_order_and_skips_those_that_raise() -> None:
    flow, cars = road(at(1, speed=3.0), at(2, speed=1.0, plate="stolen"), at(3, speed=2.0), at(12, speed=5.0))
    cars.window(TEN).reduce("slowest", slower).sink("out", TestingSink("out"))
    results = run_flow(flow)
    assert results.tables["out"] == [(9, Car("left", 2.0)), (19, Car("left", 5.0))]
    assert [(x.step, x.reason) for x in results.dead_letters] == [("slowest", "ValueError: no stolen cars")]


def test_a_record_that_raises_does_not_prolong_a_session() -> None:
    flow, cars = road(at(0), at(4, plate="stolen"), at(8))
    cars.window(session(5 * US)).reduce("slowest", slower).sink("out", TestingSink("out"))
    assert [time for time, _ in run_flow(flow).tables["out"]] == [4, 12]


class Plates(State):
    seen: list[str] = msgspec.field(default_factory=list)
    speed: float = 0.0


def noted(state: Plates, car: Car) -> Plates:
    state.seen.append(car.plate)
    state.speed += car.speed or 0
    if car.plate == "stolen":
        raise ValueError("no stolen cars")
    return state


def listed(state: Plates) -> str:
    return " ".join(state.seen)


def test_fold_of_a_window_begins_anew_in_each_and_undoes_what_raised() -> None:
    cars_in = [at(1, plate="a"), at(2, plate="stolen"), at(6, plate="b"), at(12, plate="c")]
    flow, cars = road(*cars_in)
    out = cars.window(sliding(10 * US, 5 * US)).fold("plates", Plates, noted, result=listed)
    assert ended(flow, out) == [(4, "a"), (9, "a b"), (14, "b c"), (19, "c")]


def test_aggregate_reduce_and_fold_without_a_window_give_one_result_a_record() -> None:
    cars_in = [at(1, speed=3.0, plate="a"), at(2, speed=1.0, plate="stolen"), at(3, speed=2.0, plate="b")]
    flow, cars = road(*cars_in)
    cars.reduce("slowest", slower).sink("reduced", TestingSink("reduced"))
    cars.fold("plates", Plates, noted, result=listed).sink("folded", TestingSink("folded"))
    cars.fold("states", Plates, noted).sink("states_out", TestingSink("states"))
    cars.aggregate("means", out=MeanSpeed, mean=agg.mean("speed")).sink("means_out", TestingSink("means"))
    results = run_flow(flow)
    assert results.tables["reduced"] == [(1, Car("left", 3.0, "a")), (3, Car("left", 2.0, "b"))]
    assert results.tables["folded"] == [(1, "a"), (3, "a b")]
    assert results.tables["states_out"] == [(1, Plates(["a"], 3.0)), (3, Plates(["a", "b"], 5.0))]
    assert [x.mean for _, x in results.tables["means_out"]] == [3.0, 2.0, 2.0]
    assert sorted(x.step for x in results.dead_letters) == ["plates", "slowest", "states"]


class MeanSpeed(Record):
    lane: str
    mean: float


class Worst(State):
    speed: float = 0.0


class Speeding(agg.Aggregate[float, Worst, float]):
    """The worst speed; refuses negative ones."""

    accumulator: ClassVar[Any] = Worst

    def create(self) -> Worst:
        return Worst()

    def add(self, acc: Worst, value: float, time: int, origin: Origin) -> Worst:
        acc.speed = max(acc.speed, value)
        if value < 0:
            raise ValueError("nobody drives backwards")
        return acc

    def merge(self, left: Worst, right: Worst) -> Worst:
        return left if left.speed > right.speed else right

    def result(self, acc: Worst) -> float:
        return 1 / acc.speed


class Inverse(Record):
    lane: str
    inverse: float


def test_a_users_own_aggregate_refuses_a_record_without_a_trace_and_may_have_no_result() -> None:
    flow, cars = road(at(1, speed=4.0), at(2, speed=-9.0), at(11, "right", -1.0), at(21, speed=0.0))
    windows = cars.window(TEN)
    out = windows.aggregate("inverse", out=Inverse, inverse=Speeding().of("speed"))
    out.sink("out", TestingSink("out"))
    results = run_flow(flow)
    assert results.tables["out"] == [(9, Inverse("left", 0.25))]
    assert [(x.reason, json.loads(x.raw)) for x in results.dead_letters] == [
        ("ValueError: nobody drives backwards", {"lane": "left", "speed": -9.0, "plate": ""}),
        ("ValueError: nobody drives backwards", {"lane": "right", "speed": -1.0, "plate": ""}),
        (FLOAT_DIVIDED, {"key": "left", "start": 20, "end": 30}),
    ]


def test_a_refused_record_takes_no_early_result_of_others_with_it() -> None:
    flow, cars = road(at(1, speed=4.0), at(2, speed=-9.0), at(3, speed=5.0))
    windows = cars.window(TEN)
    out = windows.aggregate("inverse", out=Inverse, early=every_records(1), inverse=Speeding().of("speed"))
    assert ended(flow, out) == [(t, Inverse("left", x)) for t, x in ((1, 0.25), (3, 0.2), (9, 0.2))]


def test_a_function_is_called_once_a_record_and_its_failure_is_a_dead_letter() -> None:
    called: list[str] = []

    def tenth(car: Car) -> float:
        called.append(car.plate)
        return 10 / (car.speed or 0)

    flow, cars = road(at(1, speed=5.0, plate="a"), at(2, speed=0.0, plate="b"), at(3, speed=2.0, plate="c"))
    windows = cars.window(sliding(10 * US, 5 * US))
    out = windows.aggregate("tenths", out=Inverse, inverse=agg.sum(tenth))
    out.sink("out", TestingSink("out"))
    results = run_flow(flow)
    assert [x.inverse for _, x in results.tables["out"]] == [7.0, 7.0]
    assert called == ["a", "b", "c"]
    assert [x.reason for x in results.dead_letters] == ["ZeroDivisionError: division by zero"]


def test_a_sum_that_does_not_fit_is_a_dead_letter_with_the_results_origin() -> None:
    class Sum(Record):
        key: int
        sum: int

    flow = Flow("sums")
    numbers = flow.source("numbers", TestingSource(items=[(1, 2**63 - 1), (2, 1)]), out=int)
    windows = numbers.key_by(lambda n: 0, name="all").window(TEN)
    windows.aggregate("sums_", out=Sum, sum=agg.sum()).sink("out", TestingSink("out"))
    results = run_flow(flow)
    assert results.tables["out"] == []
    assert [x.reason for x in results.dead_letters] == [
        "field sum = 9223372036854775808 does not fit into 64 bits"
    ]


def test_an_event_time_too_far_to_have_a_window_is_a_dead_letter() -> None:
    flow, cars = road(at(-(2**63)), at(5))
    assert traffic(flow, cars, TEN) == [(9, 0, 10, 1)]
    flow, cars = road(at(-(2**63)), at(5))
    out = cars.window(session(TEN.size_us * US)).reduce("slowest", slower)
    out.sink("out", TestingSink("out"))
    assert [x.reason[:20] for x in run_flow(flow).dead_letters] == ["event time -92233720"]


def _story() -> list[object]:
    return [
        at(1, speed=0.1),
        at(2, "right", 7.0),
        ABORT,
        at(3, speed=0.2),
        EOF,
        at(9, speed=None),
        ABORT,
        at(14),
    ]


@pytest.mark.parametrize("early", [None, every_records(2), every_time(4 * US)])
def test_a_crash_or_a_stop_does_not_show_in_any_window(early: Any) -> None:
    def build(items: list[object]) -> Flow:
        flow, cars = road(*items)
        windows = cars.window(sliding(10 * US, 5 * US))
        windows.aggregate("traffic", out=Traffic, early=early, n=agg.count(), fastest=agg.max("speed")).sink(
            "out", TestingSink("out")
        )
        cars.window(session(5 * US)).fold("plates", Plates, noted).sink("folded", TestingSink("folded"))
        cars.fold("running", Plates, noted).sink("running_out", TestingSink("running"))
        return flow

    def settled(results: Results) -> dict[str, list[Any]]:
        key: Callable[[Any], Any] = lambda row: (row[0], msgspec.json.encode(row[1]))  # noqa: E731
        return {name: sorted(rows, key=key) for name, rows in results.tables.items()}

    # In the undisturbed run, the same positions hold nothing.
    calm = [EOF if item is ABORT else item for item in _story()]
    straight_saved, quiet = Saved(), build(calm)
    straight = [run_flow(quiet, straight_saved) for _ in range(4)][-1]
    saved, broken = Saved(), build(_story())
    results = None
    for _ in range(8):
        try:
            results = run_flow(broken, saved, rows_max=1)
        except RunAbortedError:
            continue
    assert results is not None
    assert settled(results) == settled(straight)
    assert all(settled(results).values())
