"""What a cut costs: the measurement against bytes counted in a run of that very cut, and the choice by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from geartrain import Flow, Record, Table, Task, agg
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.declarations.task import Context
from geartrain.declarations.windows import tumbling
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import Cut, choose_cut, legal_cuts, make_plan
from geartrain.planning.cuts import Rule
from geartrain.planning.splitting import with_partials
from geartrain.source import Batch
from geartrain.testing import TestingSource
from geartrain_client.planning.cost import Costs, CutCost, StepCost, StreamCost, rate
from geartrain_client.planning.measure import Measurement
from geartrain_client.planning.reasons import CostReason, cut_name, reasons, told, warnings
from tests.reference.sent import EXAMPLES, Reads, example, sent_over

SECOND_US = 1_000_000
CUTS_MAX = 6
"""Cuts of one example that are tried; of more, so many are drawn, and the proofs try them all."""


class VirtualClock:
    """Moves only when somebody sleeps, or as a source says."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def now_us(self) -> int:
        return int(self.s * 1e6)

    def monotonic_s(self) -> float:
        return self.s

    async def sleep(self, seconds: float) -> None:
        self.s += seconds


def measured(graph: Graph, seconds: float = 60.0, **options: Any) -> Costs:
    clock = options.pop("clock", None) or SystemClock()
    options.setdefault("cpu_time", lambda: 0.0)
    return asyncio.run(Measurement(graph, clock=clock, randomness=SystemRandomness(), **options).run(seconds))


class Reading(Record):
    sensor: str
    value: float


def checked(reading: Reading) -> Reading:
    if reading.value < 0:
        raise ValueError("below zero")
    return Reading(reading.sensor, round(reading.value, 1))


def readings(count: int = 1_000) -> list[tuple[int, Reading]]:
    return [(n * SECOND_US, Reading(f"s{n % 7}", n * 37 % 101 / 3 if n % 50 else -1.0)) for n in range(count)]


def thermometers(items: list[Any] | None = None) -> Flow:
    flow = Flow("thermometers")
    source = TestingSource[Reading](items=readings() if items is None else items)
    raw = flow.source("raw", source, out=Reading, partitioned_by="sensor")
    good = raw.map(checked, keeps=("sensor",))
    good.filter(lambda r: r.value > 20, name="warm").sink("hot", Table("hot"))
    good.key_by("sensor").reduce("highest", max_of).sink("peaks", Table("peaks"))
    return flow


def max_of(left: Reading, right: Reading) -> Reading:
    return left if left.value >= right.value else right


def test_every_cut_weighs_what_a_run_of_it_sends() -> None:
    graph = thermometers([*readings(), (0, Reading("s1", 3.0))]).graph()
    costs = measured(graph)
    cuts = legal_cuts(graph)
    assert len(cuts) > 5
    for cut in cuts:
        sent = sent_over(graph, cut)
        assert {c: costs.of_channel(c, cut).bytes for c in sent} == sent
        assert costs.of_cut(graph, cut).bytes == sum(sent.values())
    assert costs.late.records == 1
    assert costs.steps["checked"].letters.records == 20
    refused = costs.of_channel(DEAD_LETTERS, Cut(frozenset({"raw"})))
    assert refused.records == 0, "what the cloud refuses crosses no link"


@pytest.mark.parametrize("name", EXAMPLES)
def test_auto_is_within_5_percent_of_the_best_cut_found_by_trying_all(name: str, tmp_path: Path) -> None:
    graph = with_partials(example(name, tmp_path))
    costs = measured(graph)
    assert costs.ended
    cuts = legal_cuts(graph)
    chosen = choose_cut(graph, "auto", costs)
    best = costs.compare(graph, cuts)[0].cut
    drawn = cuts if len(cuts) <= CUTS_MAX else [chosen, best, *random.Random(1).sample(cuts, CUTS_MAX - 2)]
    reads = Reads(graph)
    tried = {cut: sum(sent_over(graph, cut, reads).values()) for cut in drawn}
    for cut, size in tried.items():
        assert costs.of_cut(graph, cut).bytes == size
    assert tried[best] == min(tried.values())
    assert tried[chosen] <= tried[best] * 1.05
    near = [cut for cut in cuts if costs.of_cut(graph, cut).bytes <= tried[best] * 1.05]
    # A key that only the cloud reads is found there: a key_by for it on the devices would do nothing.
    assert chosen.edge == useful(graph, chosen)
    assert len(chosen.edge) == max(len(useful(graph, cut)) for cut in near)


def useful(graph: Graph, cut: Cut) -> frozenset[str]:
    """The steps that a cut has on the devices, without a key_by whose readers are all in the cloud."""
    read = {one.step for step in graph.steps if step.id in cut.edge for one in step.inputs}
    return frozenset(step for step in cut.edge if graph[step].operator.kind != "key_by" or step in read)


def test_auto_leaves_the_streets_and_what_they_sum_up_to_on_the_devices(tmp_path: Path) -> None:
    graph = with_partials(example("traffic", tmp_path))
    plan = make_plan(graph, "auto", measured(graph))
    assert {"overspeed", "streets", "city_partial"} <= set(plan.edge)
    assert {"traces", "legs", "sections", "fakes", "city"} <= set(plan.cloud)


def test_a_stream_of_late_records_weighs_what_a_run_of_it_sends() -> None:
    flow = Flow("late")
    items = [(n * SECOND_US if n % 9 else 0, Reading(f"s{n % 7}", float(n))) for n in range(700)]
    raw = flow.source("raw", TestingSource[Reading](items=items), out=Reading)
    raw.late().map(checked).sink("too_late", Table("too_late"))
    raw.sink("all", Table("all"))
    graph = flow.graph()
    costs = measured(graph)
    assert costs.streams["checked"].records == 77
    for cut in legal_cuts(graph):
        assert costs.of_cut(graph, cut).bytes == sum(sent_over(graph, cut).values())


class Hour(Record):
    value: float
    readings: int
    highest: float


def by_level() -> Flow:
    """Readings that no field partitions, by a key that every device has, in hours."""
    flow = Flow("levels")
    items = [(n * 60 * SECOND_US, Reading(f"s{n % 7}", float(n % 4))) for n in range(2_000)]
    raw = flow.source("raw", TestingSource[Reading](items=items), out=Reading)
    keyed = raw.key_by(level, name="by_level").window(tumbling(timedelta(hours=6)))
    hours = keyed.aggregate(
        "levels",
        out=Hour,
        early=None,
        readings=agg.count(),
        highest=agg.max("value"),
        value=agg.mean("value"),
    )
    hours.sink("all", Table("all"))
    return flow


def level(reading: Reading) -> int:
    return int(reading.value)


def test_partial_aggregates_weigh_what_a_run_of_them_sends_and_are_chosen() -> None:
    split = with_partials(by_level().graph())
    costs = measured(split)
    tried = {cut: sum(sent_over(split, cut).values()) for cut in legal_cuts(split)}
    assert len(tried) == 3
    for cut, size in tried.items():
        assert costs.of_cut(split, cut).bytes == size
    plan = make_plan(by_level().graph(), "auto", costs)
    assert plan.edge == ("raw", "by_level", "levels_partial")
    assert tried[plan.cut] * 5 < max(tried.values())
    why = reasons(plan, costs, costs.compare(split, legal_cuts(split)))
    own = why["levels_partial"]
    assert isinstance(own, CostReason)
    assert own.here < own.there
    assert own.saved is not None
    assert told(own).startswith("cost: edge ")
    assert " of partial aggregates in place of " in told(own)
    assert why["levels"].rule is Rule.MERGES


def test_an_aggregate_that_is_not_split_has_the_work_of_both_its_parts() -> None:
    ticks = [0.0]

    def cpu_time() -> float:
        ticks[0] += 1.0
        return ticks[0]

    split = with_partials(by_level().graph())
    costs = measured(split, cpu_time=cpu_time)
    plan = make_plan(split, "cloud")
    whole = costs.whole_again(split, plan.graph)
    parts = costs.steps["levels_partial"], costs.steps["levels"]
    assert whole.steps["levels"].cpu_s == parts[0].cpu_s + parts[1].cpu_s
    assert whole.steps["levels"].records == 2_000
    assert set(whole.steps) == {step.id for step in plan.graph.steps}
    assert costs.whole_again(split, split) == costs
    cheap = replace(whole, capacity=1e9)
    why = reasons(plan, cheap, cheap.compare(split, legal_cuts(split)))
    assert told(why["levels"]).startswith("cost: cloud ")
    assert ", edge (its partial aggregates) at least " in told(why["levels"])


# The choice


def graph_of_three() -> Graph:
    flow = Flow("three")
    a = flow.source("a", TestingSource[Reading](), out=Reading)
    b = a.map(checked, name="b")
    b.filter(lambda r: r.value > 0, name="c").sink("s", Table("t"))
    return flow.graph()


def costs_of(sizes: Mapping[str, int], cpu_s: Mapping[str, float], capacity: float = 0.5) -> Costs:
    """A measurement of 100 s in which streams had `sizes` bytes and steps took `cpu_s`."""
    streams = {step: StreamCost(100, size) for step, size in sizes.items()}
    steps = {step: StepCost(100, cpu_s.get(step, 0.0)) for step in (*sizes, "s")}
    return Costs(100.0, True, 100.0, True, streams, steps, capacity=capacity)


@pytest.mark.parametrize(
    ("sizes", "cpu_s", "chosen"),
    [
        ((1_000, 500, 100), (1, 1, 1), "abc"),
        ((100, 500, 1_000), (1, 1, 1), "a"),
        ((100, 104, 105), (1, 1, 1), "abc"),  # as good within 5 %: as much as possible on the edge
        ((100, 104, 106), (1, 1, 1), "ab"),
        ((1_000, 500, 100), (1, 1, 60), "ab"),  # 62 s of 100 s are above half a core
        ((1_000, 500, 100), (1, 50, 60), "a"),
        ((1_000, 500, 100), (60, 50, 60), "a"),  # none is within: that which asks least
    ],
)
def test_the_cheapest_cut_within_capacity_is_chosen(
    sizes: tuple[int, ...], cpu_s: tuple[float, ...], chosen: str
) -> None:
    graph = graph_of_three()
    costs = costs_of(dict(zip("abc", sizes, strict=True)), dict(zip("abc", cpu_s, strict=True)))
    assert choose_cut(graph, "auto", costs).edge == set(chosen)
    assert choose_cut(graph, "cloud", costs).edge == {"a"}, "what is asked for by name is not weighed"
    assert make_plan(graph, "auto", costs).cut.edge == set(chosen)


def test_pins_are_kept_whatever_they_cost() -> None:
    flow = Flow("pinned")
    a = flow.source("a", TestingSource[Reading](), out=Reading)
    a.map(checked, name="b").at("edge").filter(lambda r: r.value > 0, name="c").sink("s", Table("t"))
    graph = flow.graph()
    assert choose_cut(graph, "auto", costs_of({"a": 1, "b": 900, "c": 800}, {})).edge == {"a", "b", "c"}
    flow.pin("b", "cloud")
    assert choose_cut(flow.graph(), "auto", costs_of({"a": 900, "b": 9, "c": 1}, {})).edge == {"a"}


def test_capacity_is_a_share_of_a_core_and_says_how_many_records_it_takes() -> None:
    graph, costs = graph_of_three(), costs_of({"a": 1_000, "b": 500, "c": 100}, {"a": 1, "b": 4, "c": 15})
    cost = costs.of_cut(graph, Cut(frozenset("abc")))
    assert cost == CutCost(Cut(frozenset("abc")), 100, 1.0, 0.2, 2.5)
    assert costs.of_cut(graph, Cut(frozenset("a"))).records_per_s_max == 50.0
    assert [one.bytes for one in costs.compare(graph, legal_cuts(graph))] == [100, 500, 1_000]


def test_a_device_takes_time_for_what_it_encodes_and_none_for_what_the_cloud_sends_it() -> None:
    graph = load_flow("geartrain_examples.control_loop.flow:flow").graph()
    streams = {s.id: StreamCost(10, 100, 2.0) for s in graph.steps if s.out is not None}
    steps = {s.id: StepCost(10, 1.0) for s in graph.steps}
    costs = Costs(100.0, True, 100.0, True, streams, steps)
    plan = make_plan(graph, "cloud")
    assert plan.edge == ("levels", "command", "valve")
    cost = costs.of_cut(plan.graph, plan.cut)
    assert cost.bytes == 200, "levels go up, commands come down"
    assert cost.cpu_share == pytest.approx((3 * 1.0 + 2.0) / 100)


def test_each_step_says_what_the_other_tier_would_have_cost() -> None:
    graph = graph_of_three()
    costs = costs_of({"a": 1_000, "b": 500, "c": 100}, {"a": 1, "b": 4, "c": 60})
    plan = make_plan(graph, "auto", costs)
    why = reasons(plan, costs, costs.compare(graph, legal_cuts(graph)))
    assert [why[step].rule for step in "abcs"] == [Rule.SOURCE, Rule.COST, Rule.CAPACITY, Rule.STORE]
    assert {step: told(reason) for step, reason in why.items()} == {
        "a": "rule 1: a source stands on its devices",
        "b": "cost: edge 5 B/s, cloud at least 10 B/s",
        "c": "cost: edge would take 0.65 of a core or more, above the capacity of 0.5",
        "s": "rule 1: a table is a store of the cloud",
    }
    even = costs_of({"a": 100, "b": 104, "c": 104}, {})
    why = reasons(make_plan(graph, "auto", even), even, even.compare(graph, legal_cuts(graph)))
    assert told(why["c"]).endswith("within 5 %, so as many steps as possible on the edge")


def test_a_cut_has_the_name_that_asks_for_it() -> None:
    graph = thermometers().graph()
    for cut in legal_cuts(graph):
        assert choose_cut(graph, cut_name(graph, cut)) == cut


@pytest.mark.parametrize(
    ("per_s", "span", "text"),
    [(12.345, "s", "12.3 B/s"), (1234.5, "s", "1,234 B/s"), (0.0002, "day", "17.3 B/day"), (0, "s", "0 B/s")],
)
def test_rates_are_told_so_that_they_can_be_read(per_s: float, span: str, text: str) -> None:
    assert rate(per_s, "B", span) == text


# The measurement


class Endless(TestingSource[Reading]):
    """A record for every 100 ms of a clock, for ever."""

    bounded = False
    clock: Any = None

    def open(self, device: str, step: str, out: type[Reading]) -> Any:
        return [_EndlessSplit(self.clock)]


class _EndlessSplit:
    name = "endless"
    out_of_orderness_us = 0
    live_clock = True

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._began_s = clock, clock.s

    async def read(self, position: int, limit: int) -> Batch:
        due = min(position + limit, int((self._clock.s - self._began_s) * 10))
        numbers = range(position, due)
        times = [int((self._began_s + n / 10) * 1e6) for n in numbers]
        return Batch([Reading("s", n) for n in numbers], times, list(numbers), max(position, due))

    async def close(self) -> None:
        """Nothing to release."""


def test_a_live_source_is_measured_for_its_time_at_its_own_pace() -> None:
    clock, flow = VirtualClock(), Flow("live")
    source = Endless(clock=clock)
    flow.source("raw", source, out=Reading).map(checked).sink("all", Table("all"))
    costs = measured(flow.graph(), 20.0, clock=clock)
    assert (costs.paced, costs.ended) == (True, False)
    assert 20.0 <= costs.wall_s < 20.1
    assert costs.seconds == costs.wall_s
    assert costs.steps["raw"].records in (199, 200)
    assert costs.per_s(costs.streams["checked"].records) == pytest.approx(10, rel=0.02)


class Silent(_EndlessSplit):
    """Gives one record, and then nothing for ever."""

    async def read(self, position: int, limit: int) -> Batch:
        poll = await super().read(position, 1)
        return poll if not position else Batch([], [], [], position)


class Seldom(Endless):
    """A door that opens once."""

    def open(self, device: str, step: str, out: type[Reading]) -> Any:
        return [Silent(self.clock)]


def test_a_live_source_that_is_silent_lets_time_go_on() -> None:
    clock, flow, fired = VirtualClock(), Flow("live"), []

    class Watch(Task[Reading, Reading]):
        def on_next(self, value: Reading, ctx: Context[Reading, Any]) -> None:
            ctx.notify_at(ctx.event_time + 5 * SECOND_US)

        def on_notify(self, time: int, ctx: Context[Reading, Any]) -> None:
            fired.append(clock.s)

    raw = flow.source("raw", Seldom(clock=clock), out=Reading)
    raw.key_by("sensor").process("watch", Watch()).sink("all", Table("all"))
    measured(flow.graph(), 20.0, clock=clock)
    assert fired
    assert 1_005 < fired[0] < 1_010, "not only when the measurement is over"


def test_a_file_that_is_read_at_once_has_the_rate_of_its_event_times() -> None:
    costs = measured(thermometers().graph())
    assert (costs.paced, costs.ended) == (False, True)
    assert costs.seconds == pytest.approx(999 * 1_000 / 1_000)
    assert costs.per_s(costs.steps["raw"].records) == pytest.approx(1_000 / 999)


class Slow(TestingSource[Reading]):
    """Takes a second of a clock for 10 records."""

    clock: Any = None

    def open(self, device: str, step: str, out: type[Reading]) -> Any:
        (split,) = super().open(device, step, out)
        read, clock = split.read, self.clock

        async def slowly(position: int, limit: int) -> Batch:
            clock.s += 1.0
            return await read(position, 10)

        split.read = slowly  # type: ignore[method-assign]
        return [split]


def test_a_long_file_is_measured_until_the_time_is_over() -> None:
    clock, flow = VirtualClock(), Flow("slow")
    flow.source("raw", Slow(items=readings(), clock=clock), out=Reading).sink("all", Table("all"))
    costs = measured(flow.graph(), 5.0, clock=clock)
    assert (costs.steps["raw"].records, costs.ended, costs.paced) == (50, False, False)


def test_the_time_of_a_step_is_its_own() -> None:
    ticks = [0.0]

    def slow(reading: Reading) -> Reading:
        ticks[0] += 0.5
        return reading

    def quick(reading: Reading) -> Reading:
        ticks[0] += 0.01
        return reading

    flow = Flow("times")
    raw = flow.source("raw", TestingSource[Reading](items=readings(100)), out=Reading)
    raw.map(slow).map(quick).sink("all", Table("all"))
    costs = measured(flow.graph(), cpu_time=lambda: ticks[0])
    assert costs.steps["slow"].cpu_s == pytest.approx(50)
    assert costs.steps["quick"].cpu_s == pytest.approx(1)
    assert costs.steps["quick"].cpu_us_per_record == pytest.approx(10_000)
    assert costs.steps["raw"].cpu_s == pytest.approx(0)


class AtTheEnd(Task[Reading, Reading]):
    def on_next(self, value: Reading, ctx: Context[Reading, Any]) -> None:
        ctx.notify_at(ctx.event_time + 3_600 * SECOND_US)

    def on_notify(self, time: int, ctx: Context[Reading, Any]) -> None:
        ctx.emit(Reading(str(ctx.key), 0.0))


def test_what_waits_for_its_time_when_the_measurement_is_over_is_counted() -> None:
    clock, flow = VirtualClock(), Flow("timers")
    raw = flow.source("raw", Slow(items=readings(), clock=clock), out=Reading)
    raw.key_by("sensor").process("later", AtTheEnd()).sink("all", Table("all"))
    costs = measured(flow.graph(), 3.0, clock=clock)
    assert (costs.steps["raw"].records, costs.streams["later"].records, costs.ended) == (30, 30, False)


class Blob(Record):
    body: bytes
    more: Any = None


def test_records_too_large_for_a_batch_are_told() -> None:
    items = [(n, Blob(bytes(10))) for n in range(5)]
    items[3] = (3, Blob(bytes(300_000)))
    flow = Flow("blobs")
    flow.source("raw", TestingSource[Blob](items=items), out=Blob).sink("all", Table("all"))
    costs = measured(flow.graph())
    assert (costs.streams["raw"].records, costs.streams["raw"].too_large) == (5, 1)
    told = warnings(make_plan(flow.graph()), costs)
    assert "1 records of 'raw' are too large for a batch, and cannot be sent" in told


class Roll(Task[Reading, float]):
    replayable = False

    def on_next(self, value: Reading, ctx: Context[float, Any]) -> None:
        ctx.emit(value.value)


def test_untyped_channels_and_steps_that_are_not_replayable_are_warned_of() -> None:
    flow = Flow("careless")
    source = TestingSource[Blob](items=[(n, Blob(b"x", {"n": n})) for n in range(100)])
    flow.source("raw", source, out=Blob).sink("all", Table("all"))
    raw = flow.source("others", TestingSource[Reading](items=readings(10)), out=Reading)
    raw.key_by("sensor").process("roll", Roll()).sink("rolls", Table("rolls"))
    assert warnings(make_plan(flow.graph())) == [
        "step 'roll' is not replayable: its results may differ after a restart or under another cut",
        "channel 'raw' says nothing of what is in 'more', sent as msgpack: declare its type",
    ]
    costs = measured(flow.graph())
    plan = make_plan(flow.graph())
    (untyped,) = [text for text in warnings(plan, replace(costs, capacity=9.0)) if "msgpack" in text]
    assert "(4.0 bytes a record before compression; the whole record has " in untyped
    over = warnings(make_plan(graph_of_three()), costs_of({"a": 1, "b": 1, "c": 1}, {"b": 70}))
    assert over[-1].startswith("this cut takes 0.7 of a core of a device, above the capacity of 0.5")


def test_only_the_streams_that_are_asked_for_are_weighed() -> None:
    graph = thermometers().graph()
    costs = measured(graph, streams=["raw"])
    assert set(costs.streams) == {"raw"}
    assert costs.of_channel(LATE, Cut(frozenset({"raw"}))).bytes == 0
