"""Dealing to devices in a flow: what is refused when it is planned, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geartrain import Flow, Record, Stream, Table, Task, by_key
from geartrain.errors import FlowError, PlacementError
from geartrain.operators.deal import Deal
from geartrain.planning import choose_cut, legal_cuts, make_plan
from geartrain.planning.dealt import waits_for_time
from geartrain.sinks import JsonLinesFile
from geartrain.testing import TestingSource, run_flow


class Reading(Record):
    sensor: str
    level: float


class Count(Task[Reading, Reading]):
    state = int

    def on_next(self, value: Reading, ctx: Any) -> None:
        ctx.state += 1
        ctx.emit(Reading(value.sensor, float(ctx.state)))


def same(reading: Reading) -> Reading:
    return reading


def home(reading: Reading) -> str:
    return reading.sensor


def begun(*items: Any) -> tuple[Flow, Stream[Reading]]:
    flow = Flow("loop")
    source: TestingSource[Reading] = TestingSource(items=list(items), name="s")
    readings = flow.source("readings", source, out=Reading)
    return flow, readings.map(same, name="up").at("cloud")


Wrong = Callable[[Flow, Stream[Reading]], object]

WRONG: dict[str, tuple[Wrong, str]] = {
    "no key": (
        lambda flow, up: up.map(same, name="m").at("edge", device=by_key),
        "step 'm': device=by_key, but the records of 'up' have no key",
    ),
    "no field": (
        lambda flow, up: up.map(same, name="m").at("edge", device="tank"),
        "device='tank' is not a field of the records that it reads, Reading; their fields: sensor, level",
    ),
    "cloud": (
        lambda flow, up: up.map(same, name="m").at("cloud", device="sensor"),
        "the cloud is one place: leave device= out",
    ),
    "source": (
        lambda flow, up: flow.source("more", TestingSource(), out=Reading).at("edge", device="sensor"),
        "a source stands on the devices that hold it",
    ),
    "two inputs": (
        lambda flow, up: up.merge("both", up).at("edge", device="sensor"),
        "it reads several streams",
    ),
    "twice": (
        lambda flow, up: up.map(same, name="m").at("edge", device="sensor").at("edge", device="level"),
        "dealt to devices already",
    ),
    "a table": (
        lambda flow, up: up.map(same, name="m").at("edge", device="sensor").sink("t", Table("t")),
        "step 't': a table is in the cloud, and what was dealt to devices stays there",
    ),
    "back up": (
        lambda flow, up: (
            up.map(same, name="m")
            .at("edge", device="sensor")
            .map(same, name="n")
            .at("cloud")
            .sink("t", JsonLinesFile("t"))
        ),
        "step 'n': it stands in the cloud, below records that were dealt to devices",
    ),
    "state by another key": (
        lambda flow, up: (
            up.key_by("sensor")
            .process("count", Count())
            .at("edge", device=home)
            .sink("t", JsonLinesFile("t"))
        ),
        "not local to a device.*deal its records with device=by_key",
    ),
    "no way down": (
        lambda flow, up: up.sink("t", JsonLinesFile("t")),
        "step 't' cannot be on the edge.*end a stream of the devices in it: pin the step before it with",
    ),
    "a name": (
        lambda flow, up: up.map(same, name="m").at("edge", device=3),  # type: ignore[arg-type]
        "device=3: write by_key, a field's name, or a function",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_one_sentence_that_says_what_to_write(mistake: str) -> None:
    work, said = WRONG[mistake]
    flow, up = begun()

    def planned() -> None:
        work(flow, up)
        make_plan(flow.graph(), "edge")

    with pytest.raises((FlowError, PlacementError), match=said) as raised:
        planned()
    assert "\n" not in str(raised.value)


def test_state_over_what_is_the_devices_own_and_what_comes_down_is_refused() -> None:
    flow, up = begun()
    own = flow.source("own", TestingSource(name="o"), out=Reading, partitioned_by="sensor")
    down = up.map(same, name="m").at("edge", device="sensor")
    both = own.merge("both", down).key_by("sensor")
    both.process("count", Count()).sink("t", JsonLinesFile("t"))
    with pytest.raises(
        FlowError, match=r"step 'count_order': .* nothing promises that those of one key meet"
    ):
        flow.graph()


def test_without_state_both_may_meet() -> None:
    flow, up = begun()
    own = flow.source("own", TestingSource(name="o"), out=Reading).map(same, name="there").at("edge")
    down = up.map(same, name="m").at("edge", device="sensor")
    own.merge("both", down).sink("t", JsonLinesFile("t"))
    plan = make_plan(flow.graph(), "edge")
    assert {"own", "there", "m", "both", "t"} <= set(plan.edge)
    assert not waits_for_time(plan.graph, "m_down")


def test_an_ordered_step_below_is_ordered_on_the_device() -> None:
    flow, up = begun()
    up.key_by("sensor").process("count", Count()).at("edge", device=by_key).sink("t", JsonLinesFile("t"))
    graph = flow.graph()
    plan = make_plan(graph, "edge")
    assert [i.step for i in graph["count"].inputs] == ["count_order"]
    assert plan.edge == ("readings", "count_order", "count", "t")
    assert [channel.id for channel in plan.down] == ["count_down"]
    assert waits_for_time(graph, "count_down")
    assert all({"count_order", "count", "t"} <= cut.edge for cut in legal_cuts(graph))
    assert all("count_down" not in cut.edge for cut in legal_cuts(graph))


@pytest.mark.parametrize("wanted", ["auto", "cloud", ["readings"], ["m"]])
def test_what_is_below_is_on_the_edge_under_every_cut(wanted: Any) -> None:
    flow, up = begun()
    up.map(same, name="m").at("edge", device="sensor").sink("t", JsonLinesFile("t"))
    assert {"m", "t"} <= choose_cut(flow.graph(), wanted).edge


def test_a_device_sink_may_end_a_stream_that_never_leaves() -> None:
    flow = Flow("local")
    readings = flow.source("readings", TestingSource(), out=Reading)
    readings.map(same, name="m").sink("t", JsonLinesFile("t"))
    assert make_plan(flow.graph(), "cloud").edge == ("readings", "m", "t")


def test_a_record_that_names_no_device_is_a_dead_letter_of_the_dealing() -> None:
    flow, up = begun((1, Reading("a", 1.0)), (2, Reading("no name", 2.0)), (3, Reading("", 3.0)))
    up.map(same, name="m").at("edge", device="sensor").sink("t", JsonLinesFile("t"))
    found = run_flow(flow)
    assert [r.level for _, r in found.tables["t"]] == [1.0]
    assert {letter.step for letter in found.dead_letters} == {"m_down"}
    assert len(found.dead_letters) == 2


def test_a_device_is_a_text() -> None:
    with pytest.raises(TypeError, match="a device's name is a str, not int"):
        Deal(lambda value: 3).device_of("x")
