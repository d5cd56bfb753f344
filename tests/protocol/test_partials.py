"""Aggregates that are split: which are, what their cuts are, what their rows hold and what they refuse."""

from __future__ import annotations

import random
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from geartrain import (
    Flow,
    Record,
    Stream,
    Table,
    agg,
    calendar_day,
    every_records,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.accumulating import partial_types
from geartrain.declarations.calendars import with_rules
from geartrain.declarations.zone_data import rules_of
from geartrain.errors import PlacementError, StepError
from geartrain.graph.graph import DEAD_LETTERS, Graph, Step, key_step
from geartrain.graph.operator import Services
from geartrain.planning import legal_cuts, make_plan
from geartrain.planning.cuts import Rule
from geartrain.planning.splitting import put_back, with_partials
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment
from geartrain.testing import TestingSource
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer
from tests.reference.two_tiers import World, run_cut


class Colour(StrEnum):
    RED = "red"


class Pass(Record):
    street: str
    lane: int = 0
    speed: float | None = 0.0
    lit: bool = False
    plate: bytes = b""
    colour: Colour = Colour.RED
    maybe: str | None = None


class Minute(Record):
    window_start: int
    n: int
    avg: float | None


def us(number: int) -> timedelta:
    return timedelta(microseconds=number)


def passes(*, by: str | None = None) -> tuple[Flow, Stream[Pass]]:
    flow = Flow("roads")
    return flow, flow.source("passes", TestingSource[Pass](), out=Pass, partitioned_by=by)


def minutes(by: Any = "street", window: Any = None, **more: Any) -> Flow:
    flow, stream = passes()
    keyed = stream.key_by(by, name="by")
    fields = {"n": agg.count(), "avg": agg.mean("speed")} | more
    made = keyed.window(tumbling(us(60)) if window is None else window).aggregate(
        "minute", out=Minute, **fields
    )
    made.sink("minutes", Table("minutes"))
    return flow


def world(**devices: list[tuple[int, Pass]]) -> World:
    return World({d: {"passes": {f"{d}/passes": items}} for d, items in devices.items()}, {"passes": 0})


def same_everywhere(graph: Graph, met: World) -> Answer:
    """What every legal cut gives, which is what the reference gives."""
    want = interpret(graph, met.inputs(), met.bounds_us)
    cuts = legal_cuts(graph)
    assert any(s.endswith("_partial") for cut in cuts for s in cut.edge)
    for number, cut in enumerate(cuts):
        for seed in range(3):
            check_equal(run_cut(graph, cut, met, random.Random(10 * number + seed)), want)
    return want


TWO = world(
    north=[
        (5, Pass("a", speed=0.1)),
        (20, Pass("b", speed=0.2)),
        (61, Pass("a", speed=0.3)),
        (70, Pass("b")),
    ],
    south=[(1, Pass("a", speed=1e16)), (2, Pass("a", speed=-1e16)), (62, Pass("a", speed=None))],
)


def test_two_devices_give_one_result_for_a_key_and_window() -> None:
    want = same_everywhere(minutes().graph(), TWO)
    assert [(row.time, row.value) for row in want.sinks["minutes"]] == [
        (59, Minute(0, 3, 0.1 / 3)),
        (59, Minute(0, 1, 0.2)),
        (119, Minute(60, 2, 0.3)),
        (119, Minute(60, 1, 0.0)),
    ]


def split_of(flow: Flow) -> bool:
    return any(step.operator.kind == "merge_partials" for step in with_partials(flow.graph()).steps)


class Whole(Record):
    n: int


def test_what_is_split_and_what_is_not() -> None:
    assert split_of(minutes())
    assert split_of(minutes(window=sliding(us(60), us(20))))
    assert not split_of(minutes(window=session(us(60))))
    assert not split_of(minutes(early=every_records(2)))
    flow, stream = passes()
    stream.key_by("street").window(global_window()).aggregate("all", out=Whole, n=agg.count()).sink(
        "o", Table("o")
    )
    assert split_of(flow)
    flow.pin("all", "cloud")
    assert not split_of(flow)
    flow, stream = passes()
    stream.key_by("street").aggregate("so_far", out=Whole, n=agg.count()).sink("o", Table("o"))
    assert not split_of(flow)
    flow, stream = passes(by="street")
    stream.key_by("street").window(global_window()).aggregate("all", out=Whole, n=agg.count()).sink(
        "o", Table("o")
    )
    assert not split_of(flow)  # its keys are local: it stands on the device whole
    assert "all" in make_plan(flow.graph(), "edge").edge


def test_cuts_reasons_and_channels_of_a_split_aggregate() -> None:
    graph = minutes().graph()
    edges = [sorted(cut.edge) for cut in legal_cuts(graph)]
    assert edges == [["passes"], ["by", "passes"], ["by", "minute_partial", "passes"]]
    plan = make_plan(graph, "edge")
    assert (plan.edge, plan.cloud) == (("passes", "by", "minute_partial"), ("minute", "minutes"))
    assert plan.channels[0].id == "minute_partial"
    fields = [(f.name, f.type.value, f.optional) for f in plan.channels[0].schema.fields]
    assert fields == [
        ("key", "str", False),
        ("start", "int64", False),
        ("n", "int64", False),
        ("avg", "bytes", True),
    ]
    assert plan.reason(plan.graph["minute_partial"]).rule is Rule.PARTIAL
    assert plan.reason(plan.graph["minute"]).rule is Rule.MERGES
    assert make_plan(graph, "minute_partial").cut == make_plan(graph, "edge").cut == plan.cut
    with pytest.raises(PlacementError, match=r"'minute' cannot be on the edge .*: .* is 'minute_partial'"):
        make_plan(graph, "minute")


def test_an_aggregate_whose_parts_would_both_be_in_the_cloud_is_one_step_again() -> None:
    graph = minutes().graph()
    assert make_plan(graph, "by").graph == graph == put_back(with_partials(graph), ())
    assert make_plan(graph, "cloud").graph == graph
    assert with_partials(with_partials(graph)) == with_partials(graph)
    plan = make_plan(graph, "by")
    assert plan.reason(plan.graph["minute"]).rule is Rule.ASKED


def test_a_pin_to_the_edge_holds_for_the_part_that_can_be_there() -> None:
    flow = minutes()
    flow.pin("minute", "edge")
    graph = flow.graph()
    assert [sorted(cut.edge) for cut in legal_cuts(graph)] == [["by", "minute_partial", "passes"]]
    assert make_plan(graph, "cloud").edge == ("passes", "by", "minute_partial")
    assert graph["minute"].tier == "edge" == put_back(with_partials(graph), ())["minute"].tier


def test_the_partials_name_is_one_that_is_free() -> None:
    flow = minutes()
    flow.source("minute_partial", TestingSource[Pass](), out=Pass).sink("o", Table("o"))
    assert "minute_partial2" in make_plan(flow.graph(), "edge").edge
    flow, stream = passes()
    made = stream.key_by("street").window(global_window()).aggregate("x" * 63, out=Whole, n=agg.count())
    made.sink("o", Table("o"))
    assert make_plan(flow.graph(), "edge").edge[-1] == "x" * 52 + "_partial"


KEYS = [
    ("street", "str"),
    ("lane", "int64"),
    ("lit", "bool"),
    ("plate", "bytes"),
    ("maybe", "str"),
    ("colour", "bytes"),
    (lambda p: (p.street, p.lane), "bytes"),
]


@pytest.mark.parametrize(("by", "column"), KEYS, ids=[str(key[0])[:8] for key in KEYS])
def test_keys_travel_in_a_column_of_their_type_or_encoded(by: Any, column: str) -> None:
    graph = minutes(by).graph()
    assert make_plan(graph, "edge").channels[0].schema.fields[0].type.value == column
    items = [Pass("a\x00", -1, 1.0, lit=True, plate=b"\x00\xff", maybe="ü"), Pass("", 2**63 - 1, 2.0)]
    want = same_everywhere(graph, world(north=list(enumerate(items)), south=list(enumerate(items[::-1]))))
    assert sum(row.value.n for row in want.sinks["minutes"]) == (2 if by == "maybe" else 4)
    assert sum(want.dead.values()) == (2 if by == "maybe" else 0)


class Named(Record):
    key: str | None
    start: str | None


def test_an_aggregate_may_be_called_as_a_column_of_ours() -> None:
    flow, stream = passes()
    windows = stream.key_by("street").window(tumbling(us(60)))
    windows.aggregate("named", out=Named, key=agg.last("street"), start=agg.last("maybe")).sink(
        "o", Table("o")
    )
    fields = make_plan(flow.graph(), "edge").channels[0].schema.fields
    assert [f.name for f in fields] == ["key_", "start_", "key", "start"]
    same_everywhere(flow.graph(), TWO)


def test_windows_that_end_of_time_cuts_short_have_places_of_their_own() -> None:
    graph = minutes(window=sliding(us(40), us(10))).graph()
    at = END_OF_TIME - 12
    want = same_everywhere(
        graph, world(north=[(at, Pass("a"))], south=[(at, Pass("a")), (at + 5, Pass("a"))])
    )
    assert {row.time for row in want.sinks["minutes"][-3:]} == {END_OF_TIME - 1}
    plan = make_plan(graph, "edge")
    fragment = Fragment(plan.graph, plan.edge)
    fragment.feed("passes", Batch([Pass("a")], [at], ["split"], [3]))
    fragment.advance("passes", END_OF_TIME)
    (rows,) = fragment.take().batches["minute_partial"]
    places = {(time, rows.origin(row)) for row, time in enumerate(rows.times)}
    assert len(places) == len(rows) == 4
    assert set(rows.names) == {"split"}
    assert set(rows.numbers) == {3}


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4,), (2, 2), (3, 1)])
def test_a_row_has_the_place_of_the_first_record_in_it(sizes: tuple[int, ...]) -> None:
    plan = make_plan(minutes().graph(), "edge")
    born = [(7, "b", 0), (5, "b", 9), (5, "a", 12), (5, "a", 30)]
    for shift in range(4):
        fragment, rows = Fragment(plan.graph, plan.edge), [*born[shift:], *born[:shift]]
        for size in sizes:
            times, names, numbers = (list(column) for column in zip(*rows[:size], strict=True))
            fragment.feed("passes", Batch([Pass("a")] * size, times, names, numbers))
            del rows[:size]
        fragment.advance("passes", 60)
        (batch,) = fragment.take().batches["minute_partial"]
        assert (batch.times, batch.names, batch.numbers) == ([59], ["a"], [12])


def unlucky(value: Pass) -> int:
    if value.lane == 13:
        raise ValueError("an unlucky lane")
    return value.lane


class Picky(agg.Aggregate[float, float, float]):
    """Refuses a value when it is added."""

    accumulator = float

    def create(self) -> float:
        return 0.0

    def add(self, acc: float, value: float, time: int, origin: object) -> float:
        if value == 13.0:
            raise ValueError("an unlucky speed")
        return max(acc, value)

    def merge(self, left: float, right: float) -> float:
        return max(left, right)

    def result(self, acc: float) -> float:
        return acc


def test_what_a_partial_refuses_is_a_dead_letter_of_the_aggregate() -> None:
    flow, stream = passes()
    windows = stream.key_by("street").window(tumbling(us(60)))
    made = windows.aggregate("minute", out=Minute, n=agg.sum(unlucky), avg=Picky().of("speed"))
    made.sink("minutes", Table("minutes"))
    met = world(
        north=[(1, Pass("a", 13)), (2, Pass("a", 1, 13.0)), (3, Pass("a", 2))], south=[(1, Pass("a", 5))]
    )
    want = same_everywhere(flow.graph(), met)
    assert {(step, number) for step, _, name, number, _ in want.dead} == {("minute", 0), ("minute", 1)}
    assert [row.value.n for row in want.sinks["minutes"]] == [7]


class Brittle(Picky):
    """Breaks its word that it merges."""

    def merge(self, left: float, right: float) -> float:
        raise ValueError("never together")


def test_partials_that_do_not_merge_are_one_dead_letter_of_the_result() -> None:
    flow, stream = passes()
    windows = stream.key_by("street").window(tumbling(us(60)))
    made = windows.aggregate("minute", out=Minute, n=agg.count(), avg=Brittle().of("speed"))
    made.sink("minutes", Table("minutes"))
    split = legal_cuts(flow.graph())[-1]
    found = run_cut(flow.graph(), split, TWO, random.Random(4))
    whole = interpret(flow.graph(), TWO.inputs(), TWO.bounds_us)
    broken = next(row for row in whole.sinks["minutes"] if row.value.n == 3)
    assert found.sinks["minutes"] == [row for row in whole.sinks["minutes"] if row is not broken]
    assert found.dead == {("minute", *broken.order): 1}


class Text(Record):
    text: str


def test_a_partial_that_no_batch_could_take_stops_the_run_and_names_the_step() -> None:
    flow = Flow("words")
    words = flow.source("words", TestingSource[Text](), out=Text)
    windows = words.key_by(lambda word: 1, name="one").window(tumbling(us(60)))
    windows.aggregate("vocabulary", out=Whole, n=agg.count_distinct("text")).sink("o", Table("o"))
    plan = make_plan(flow.graph(), "edge")
    fragment = Fragment(plan.graph, plan.edge)
    values = [Text(f"{number:05d}" + "x" * 95) for number in range(3_000)]
    numbers = list(range(len(values)))
    fragment.feed("words", Batch(values, [5] * len(values), ["split"] * len(values), numbers))
    match = r"step 'vocabulary': the partial aggregate of key 1 has 3\d\d,\d\d\d bytes, more than a batch can"
    with pytest.raises(StepError, match=match):
        fragment.advance("words", 60)


class Level(Record):
    n: int
    sum_x: float
    avg: float
    spread: float


def test_a_row_is_small_however_many_records_it_was_made_of() -> None:
    flow, stream = passes()
    fields = {
        "n": agg.count(),
        "sum_x": agg.sum("speed"),
        "avg": agg.mean("speed"),
        "spread": agg.variance("speed"),
    }
    windows: Any = stream.key_by("street").window(tumbling(us(10_000)))
    windows.aggregate("levels", out=Level, **fields).sink("o", Table("o"))
    plan, rng = make_plan(flow.graph(), "edge"), random.Random(1)
    fragment = Fragment(plan.graph, plan.edge)
    for number in range(5_000):
        speed = rng.gauss(14, 4)
        fragment.feed("passes", Batch([Pass("a", speed=speed)], [number], ["split"], [number]))
    fragment.advance("passes", END_OF_TIME)
    (rows,) = fragment.take().batches["levels_partial"]
    assert len(rows) == 1
    assert rows.values[0].n == 5_000
    assert [len(getattr(rows.values[0], name)) < 100 for name in ("sum_x", "avg", "spread")] == [True] * 3


@pytest.mark.parametrize("seed", range(40))
def test_the_smallest_form_of_an_exact_sum_is_the_same_sum(seed: int) -> None:
    rng = random.Random(seed)
    low, high = rng.choice([(-320, 308), (-3, 3)])
    values = [rng.choice([-1, 1]) * rng.random() * 10.0 ** rng.randrange(low, high) for _ in range(90)]
    values += [1e17, -1e17]  # one in each half: what is small shows in the sum of both
    values += (
        []
        if high == 3
        else rng.sample([float("inf"), float("-inf"), float("nan"), 5e-324, 1.7e308, -1.7e308, 0.0, -0.0], 3)
    )
    for spec in (agg.sum("x"), agg.mean("x"), agg.variance("x")):
        kind: Any = spec.aggregate
        whole = kind.add_all(kind.create(), values, (), ())
        halves = [
            kind.compact(kind.add_all(kind.create(), part, (), ())) for part in (values[::2], values[1::2])
        ]
        assert repr(kind.result(kind.merge(*halves))) == repr(kind.result(whole))


def test_the_type_of_a_row_is_found_again_by_its_name() -> None:
    kind = make_plan(minutes().graph(), "edge").channels[0].kind
    assert getattr(partial_types, kind.__qualname__) is kind
    assert kind.__module__ == partial_types.__name__
    with pytest.raises(AttributeError, match="has no attribute 'Partials'"):
        getattr(partial_types, "Partials")  # noqa: B009  # the type checker knows that it is not there


def merging(rows: list[Any], times: list[int]) -> tuple[list[Any], list[Any]]:
    """(results, dead letters) of such rows, given to the cloud's part as they came over a channel."""
    plan = make_plan(minutes().graph(), "edge")
    fragment = Fragment(plan.graph, plan.cloud)
    count = len(rows)
    fragment.feed("minute_partial", Batch(rows, times, ["split"] * count, list(range(count))))
    fragment.advance("minute_partial", END_OF_TIME)
    batches = fragment.take().batches
    return [
        [value for batch in batches.get(s, []) for value in batch.values] for s in ("minutes", DEAD_LETTERS)
    ]  # type: ignore[return-value]


def test_a_row_that_no_partial_has_given_is_a_dead_letter_and_stops_nothing() -> None:
    kind = make_plan(minutes().graph(), "edge").channels[0].kind
    good = kind("a", 0, 2, None)
    results, letters = merging(
        [good, kind("a", 0, 1, b"\xc1"), kind("a", 0, 7, b"\x93"), good], [59, 59, 59, 60]
    )
    assert results == [Minute(0, 2, None)]
    assert [letter.step for letter in letters] == ["minute"] * 3
    assert max(letter.reason for letter in letters) == (
        "a partial aggregate of the window from 0 cannot have the event time 60"
    )
    assert merging([kind("a", 0, 5, None), kind("a", 0, 6, None)], [59, 59])[0] == [Minute(0, 11, None)]


def test_days_of_23_and_25_hours_are_the_same_wherever_they_are_counted() -> None:
    for zone, begin, lengths in (
        ("Europe/Berlin", 1_711_753_200_000_000, [24, 23, 24, 1]),  # 2024-03-30, midnight there
        ("Australia/Lord_Howe", 1_712_322_000_000_000, [24, 25, 23]),  # the second has 24.5 hours
        ("Pacific/Apia", 1_325_152_800_000_000, [24, 24, 24]),  # 2011-12-29; a day was left out behind it
    ):
        window = with_rules(calendar_day(zone), rules_of(zone))
        hours = [begin + hour * 3_600_000_000 for hour in range(72)]
        cars = {
            device: [(time, Pass("A", lane, float(lane))) for time in hours]
            for lane, device in enumerate(("d0", "d1"))
        }
        want = same_everywhere(minutes(window=window).graph(), world(**cars))
        assert [row.value.n for row in want.sinks["minutes"]] == [2 * n for n in lengths], zone


def test_a_row_of_a_window_that_a_calendar_does_not_have_is_a_dead_letter() -> None:
    plan = make_plan(minutes(window=calendar_day("Europe/Berlin")).graph(), "edge")
    kind = plan.channels[0].kind
    [(start, end)] = calendar_day("Europe/Berlin").assign(0)
    fragment = Fragment(plan.graph, plan.cloud)
    rows = [kind("a", start, 2, None), kind("a", 0, 1, None), kind("a", start, 1, None)]
    times = [end - 1, end - 1, end]
    fragment.feed("minute_partial", Batch(rows, times, ["split"] * 3, [0, 1, 2]))
    fragment.advance("minute_partial", END_OF_TIME)
    batches = fragment.take().batches
    assert [value for batch in batches["minutes"] for value in batch.values] == [Minute(start, 2, None)]
    assert [letter.reason for batch in batches[DEAD_LETTERS] for letter in batch.values] == [
        f"a partial aggregate of the window from 0 cannot have the event time {end - 1}",
        f"a partial aggregate of the window from {start} cannot have the event time {end}",
    ]


def test_rows_have_the_keys_of_what_they_were_made_of() -> None:
    for by in ("street", lambda p: (p.street, p.lane)):
        plan = make_plan(minutes(by).graph(), "edge")
        step = key_step(plan.graph, "minute_partial")
        assert isinstance(step, Step)
        fragment = Fragment(plan.graph, plan.edge)
        fragment.feed("passes", Batch([Pass("b", 4), Pass("a", 4)], [5, 6], ["split"] * 2, [0, 1]))
        fragment.advance("passes", 60)
        (rows,) = fragment.take().batches["minute_partial"]
        services: Any = Services("x", plan.channels[0].kind, pytest.fail, None)  # type: ignore[arg-type]
        opened: Any = step.operator.open(services)
        assert opened(rows).keys == rows.keys
        assert sorted(rows.keys or []) == [encode_key(k if by == "street" else (k, 4)) for k in "ab"]
        backwards = rows.take([1, 0])
        assert opened(backwards).keys == backwards.keys
