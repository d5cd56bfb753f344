"""Which steps may stand where: the rules, the pins, and the errors that explain a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.declarations.options import Text
from geartrain.errors import ConfigError, FlowError, PlacementError
from geartrain.fleet.selectors import CLOUD_DEVICE, CLOUD_LABELS
from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.operators.source import on_device
from geartrain.planning import choose_cut, legal_cuts, make_plan
from geartrain.planning.cuts import Reason, Rule
from geartrain.planning.refusals import sentence
from geartrain.runtime.opened import open_sources
from geartrain.testing import TestingSource


class Reading(Record):
    sensor: str
    value: float


class Count(State):
    n: int = 0


class Counter(Task[Reading, int]):
    state: ClassVar[type[Count]] = Count
    step: int = 1

    def on_next(self, value: Reading, ctx: Context[int, Count]) -> None:
        ctx.state.n += self.step
        ctx.emit(ctx.state.n)


class Loose(TestingSource[Reading]):
    in_order = False


def double(reading: Reading) -> Reading:
    return Reading(reading.sensor, reading.value * 2)


def sensors(*, keeps: tuple[str, ...] = ("sensor",), ordered: bool = True) -> Flow:
    flow = Flow("sensors")
    source = TestingSource[Reading]() if ordered else Loose()
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    doubled = readings.map(double, keeps=keeps)
    doubled.sink("all", Table("all_readings"))
    doubled.key_by("sensor").process("counter", Counter()).sink("counts", Table("counts"))
    return flow


def test_every_legal_cut_is_closed_upward_and_holds_the_source() -> None:
    edges = [sorted(cut.edge) for cut in legal_cuts(sensors().graph())]
    assert edges == [
        ["readings"],
        ["double", "readings"],  # with the key_by it would be the same: "double" crosses once
        ["counter", "double", "double_by_sensor", "readings"],
    ]


def with_rates(*, pin: str = "") -> Flow:
    """Readings of devices, and rates that are read in the cloud, which share the field of their keys."""
    flow = Flow("rated")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    rates = flow.source("rates", TestingSource[Reading](), out=Reading, partitioned_by="sensor").at("cloud")
    rates.late().sink("late", Table("late"))
    doubled = rates.map(double, keeps=("sensor",))
    keyed = readings.merge("both", doubled).key_by("sensor").process("counter", Counter())
    keyed.sink("counts", Table("counts"))
    readings.map(double, name="own").sink("owns", Table("owns"))
    if pin:
        flow.pin(pin, "edge")
    return flow


def test_a_source_in_the_cloud_is_in_every_cut_and_what_reads_it_in_none() -> None:
    graph = with_rates().graph()
    both = {"readings", "rates", "rates_late"}
    assert [cut.edge for cut in legal_cuts(graph)] == [both, both | {"own"}]
    assert choose_cut(graph, "edge").edge == both | {"own"}
    plan = make_plan(graph, "edge")
    assert [c.id for c in plan.channels] == ["readings", "rates", "rates_late", "own", DEAD_LETTERS, LATE]
    assert plan.reason(graph["rates"]) == Reason("rates", Rule.CLOUD_SOURCE, "cloud")
    assert plan.reason(plan.graph["double"]) == Reason("double", Rule.INPUT_IN_CLOUD, other="rates")
    with pytest.raises(
        PlacementError, match=r"deal its records with device=\.\.\., or let 'double' run in the"
    ):
        make_plan(with_rates(pin="double").graph(), "edge")


def test_where_a_source_is_pinned_says_who_has_it() -> None:
    flow = Flow("some")
    source = flow.source("some", TestingSource[Reading](), out=Reading, devices="kind=truck")
    with pytest.raises(FlowError, match=r"says which devices have it, and at\('cloud'\) that none has"):
        source.at("cloud")
    rates = flow.source("rates", TestingSource[Reading](), out=Reading).at("cloud")
    rates.sink("out", Table("out"))
    on_own = on_device(flow.graph(), CLOUD_DEVICE, CLOUD_LABELS)
    assert [one.step for one in open_sources(on_own, CLOUD_DEVICE)] == ["rates"]
    on_truck = on_device(flow.graph(), "t1", {"kind": "truck"})
    assert [one.step for one in open_sources(on_truck, "t1")] == ["some"]
    rates.at("edge")
    on_truck = on_device(flow.graph(), "t1", {"kind": "truck"})
    assert [one.step for one in open_sources(on_truck, "t1")] == ["some", "rates"]


def test_edge_takes_all_that_is_legal_and_cloud_only_the_source() -> None:
    graph = sensors().graph()
    assert choose_cut(graph, "edge").edge == {"readings", "double", "double_by_sensor", "counter"}
    assert choose_cut(graph, "auto").edge == {"readings", "double"}, "the counts would come on top"
    assert choose_cut(graph, "cloud").edge == {"readings"}
    assert choose_cut(graph, "double").edge == {"readings", "double"}


def test_channels_are_the_streams_that_cross_and_the_two_of_every_flow() -> None:
    plan = make_plan(sensors().graph(), "edge")
    assert [c.id for c in plan.channels] == ["double", "counter", DEAD_LETTERS, LATE]
    assert [c.id for c in make_plan(sensors().graph(), "cloud").channels] == ["readings", DEAD_LETTERS, LATE]
    assert {c.sources for c in plan.channels} == {frozenset({"readings"})}


def test_a_map_that_does_not_keep_the_partition_field_ends_its_domain() -> None:
    plan = make_plan(sensors(keeps=()).graph())
    assert [channel.id for channel in plan.channels] == ["double", DEAD_LETTERS, LATE]
    assert plan.cloud == ("all", "double_by_sensor", "counter_order", "counter", "counts")


def test_a_source_out_of_order_gets_an_order_step_which_may_stand_on_the_device() -> None:
    edges = [sorted(cut.edge) for cut in legal_cuts(sensors(ordered=False).graph())]
    before = ["double", "double_by_sensor"]
    assert edges == [
        ["readings"],
        ["double", "readings"],
        ["counter_order", *before, "readings"],
        ["counter", "counter_order", *before, "readings"],
    ]


def test_an_illegal_pin_names_step_rule_and_fix() -> None:
    flow = Flow("pins")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    readings.filter(lambda r: r.value > 0, name="positive").at("cloud").map(double).at("edge").sink(
        "s", Table("t")
    )
    match = r"step 'double' cannot be on the edge \(rule 2: its input 'positive' is in the cloud\): "
    for attempt in (lambda: make_plan(flow.graph()), lambda: legal_cuts(flow.graph())):
        with pytest.raises(PlacementError, match=match):
            attempt()
    with pytest.raises(
        PlacementError, match=r"step 'all' cannot be on the edge \(rule 1: a table is a store"
    ):
        choose_cut(sensors().graph(), "all")


def test_a_pin_to_the_cloud_holds_under_every_cut() -> None:
    flow = sensors()
    graph = flow.graph()
    flow.pin("double", "cloud")
    assert [sorted(c.edge) for c in legal_cuts(flow.graph())] == [["readings"]]
    assert choose_cut(graph, "auto") != choose_cut(flow.graph(), "auto")
    assert choose_cut(flow.graph(), "edge").edge == {"readings"}, "edge is as much as is legal"
    with pytest.raises(
        PlacementError, match="step 'double' cannot be on the edge \\(it is pinned to the cloud"
    ):
        choose_cut(flow.graph(), "double")


@pytest.mark.parametrize("wanted", ["cloud", "readings", "double"])
def test_a_pin_to_the_edge_holds_under_every_cut_with_all_above_it(wanted: str) -> None:
    flow = sensors()
    flow.pin("counter", "edge")
    assert choose_cut(flow.graph(), wanted).edge == {"readings", "double", "double_by_sensor", "counter"}


def test_what_is_asked_for_in_vain_is_named_itself_with_what_stands_in_its_way() -> None:
    graph = sensors(keeps=()).graph()
    match = (
        r"step 'counter' cannot be on the edge \(rule 2: the keys of 'double_by_sensor' are not local to a "
    )
    with pytest.raises(PlacementError, match=match):
        choose_cut(graph, ["double", "counter"])
    with pytest.raises(PlacementError, match="step 'counter_order' cannot be on the edge"):
        choose_cut(graph, "counter_order")
    assert choose_cut(graph, "edge").edge == {"readings", "double"}


def placed() -> Flow:
    """Readings with a small table beside them, of which the user pinned nothing."""
    flow = Flow("placed")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    places = flow.source("places", TestingSource[Reading](), out=Reading)
    near = readings.filter(lambda r: r.value > 0, name="near")
    found = near.broadcast("found", places, with_place, key="sensor")
    found.map(double).sink("t", Table("t"))
    return flow


def with_place(reading: Reading, places: Mapping[str, Reading]) -> Reading:
    return places.get(reading.sensor, reading)


def test_edge_holds_all_that_may_be_there_and_leaves_a_broadcast_in_the_cloud() -> None:
    plan = make_plan(placed().graph(), "edge")
    assert {"readings", "near", "places"} <= set(plan.edge)
    assert {"found", "double", "t"} <= set(plan.cloud)
    why = {step.id: plan.reason(step) for step in plan.graph.steps}
    assert why["found"] == Reason("found", Rule.ONLY_TIER, "cloud", "broadcast")
    assert why["double"] == Reason("double", Rule.INPUT_IN_CLOUD, "cloud", "found")
    assert why["near"].rule is Rule.LEGAL


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            "found",
            """step 'found' cannot be on the edge (a broadcast step always stands in the cloud): name a step
            above 'found', or let 'found' run in the cloud""",
        ),
        (
            "double",
            """step 'double' cannot be on the edge (rule 2: its input 'found' is in the cloud): 'found' above
            it is a broadcast step, which always stands in the cloud, so name a step above 'found', or let
            'double' run in the cloud""",
        ),
    ],
)
def test_a_broadcast_that_is_asked_for_on_the_edge_is_named_with_what_to_write(
    wanted: str, said: str
) -> None:
    with pytest.raises(PlacementError) as refused:
        choose_cut(placed().graph(), wanted)
    assert str(refused.value) == " ".join(said.split())


def test_every_rule_has_its_sentence() -> None:
    for rule in set(Rule) - {
        Rule.COST,
        Rule.CAPACITY,
        Rule.ESTIMATE,
    }:  # which have figures, and sentences of their own
        assert sentence(Reason("a", rule, other="b"))


def test_options_are_set_by_step_and_checked() -> None:
    graph = sensors().graph().with_options({"counter": {"step": Text("5")}})
    task = graph["counter"].operator.task  # type: ignore[attr-defined]
    assert task.step == 5
    with pytest.raises(ConfigError, match="--set: flow sensors has no step 'count'; its steps: readings"):
        graph.with_options({"count": {"step": "5"}})
    with pytest.raises(ConfigError, match="there is no option 'stride'; options of Counter: step"):
        graph.with_options({"counter": {"stride": "5"}})
    with pytest.raises(ConfigError, match=r"--set counter.step = 'many': expected int, got str"):
        graph.with_options({"counter": {"step": Text("many")}})
    with pytest.raises(ConfigError, match="this step has no options, so x cannot be set"):
        graph.with_options({"double": {"x": 1}})
