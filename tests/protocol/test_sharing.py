"""A stream that several readers need under different keys crosses once, and nothing shows of it."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import legal_cuts, make_plan
from geartrain.planning.cuts import Cut, Rule
from geartrain.planning.sharing import crossing, settled
from geartrain.planning.splitting import with_partials
from geartrain.records.event_time import SECOND_US
from geartrain.testing import TestingSource
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import World, run_cut


class Car(Record):
    street: str
    plate: str
    speed: int


class Count(State):
    n: int = 0


class Counted(Task[Car, Car]):
    """Each car with how many its key had."""

    state: ClassVar[type[Count]] = Count

    def on_next(self, value: Car, ctx: Context[Car, Count]) -> None:
        ctx.state.n += 1
        ctx.emit(Car(value.street, value.plate, ctx.state.n))


def first_letter(car: Car) -> str:
    """Raises for a car without a plate."""
    return car.plate[0]


def second_letter(car: Car) -> str:
    """Raises for a plate of one letter."""
    return car.plate[1]


def traffic() -> Flow:
    """Cars that the cloud keeps, counted by street on the device, and by plate in the cloud, where some have
    no key; what is counted by street is also needed in the cloud, keyed.
    """
    flow = Flow("traffic")
    cars = flow.source("cars", TestingSource[Car](), out=Car, partitioned_by="street")
    cars.sink("all", Table("all"))
    streets = cars.key_by("street", name="by_street")
    streets.process("in_street", Counted()).sink("streets", Table("streets"))
    streets.process("beside", Counted()).at("cloud").sink("besides", Table("besides"))
    letters = cars.key_by(first_letter)
    letters.log("seen").sink("letters", Table("letters"))
    letters.process("by_plate", Counted()).sink("plates", Table("plates"))
    again = letters.key_by(second_letter)
    again.process("by_second", Counted()).sink("seconds", Table("seconds"))
    return flow


def world(seed: int) -> World:
    """Two devices with a street each; a few cars have no plate, or one of a letter."""
    rng = random.Random(seed)

    def items(street: str) -> list[Any]:
        plates = ["ab", "ac", "bb", "b", ""]
        return [(n * SECOND_US, Car(street, rng.choice(plates), rng.randrange(9))) for n in range(40)]

    devices = {name: {"cars": {f"{name}/cars": items(f"street of {name}")}} for name in ("a", "b")}
    return World(devices, {"cars": 0})


def channels(graph: Graph, cut: str | list[str]) -> list[str]:
    return [c.id for c in make_plan(graph, cut).channels if c.id not in (DEAD_LETTERS, LATE)]


def test_a_stream_and_its_key_by_are_one_channel() -> None:
    graph = traffic().graph()
    assert channels(graph, "cloud") == channels(graph, "by_street,first_letter") == ["cars"]
    assert channels(graph, "in_street") == ["cars", "in_street"]
    assert channels(graph, "edge") == ["cars", "in_street", "seen"]


def test_a_key_by_that_only_the_cloud_reads_goes_there_and_says_why() -> None:
    plan = make_plan(traffic().graph(), "by_street")
    assert plan.edge == ("cars",)
    assert plan.reason(plan.graph["by_street"]).rule is Rule.CROSSES_ONCE
    assert plan.reason(plan.graph["by_street"]).other == "cars"


def test_a_key_by_that_both_sides_read_is_done_on_both() -> None:
    plan = make_plan(traffic().graph(), "in_street")
    assert plan.edge == ("cars", "by_street", "in_street")
    second = plan.graph["by_street_again"]
    assert (second.inputs[0].step, second.id in plan.cloud) == ("cars", True)
    assert plan.graph["beside"].inputs[0].step == "by_street_again"
    assert plan.graph["in_street"].inputs[0].step == "by_street"
    assert plan.reason(second).rule is Rule.CROSSES_ONCE


def test_a_pin_of_a_key_by_is_kept() -> None:
    flow = traffic()
    flow.pin("by_street", "edge")
    plan = make_plan(flow.graph(), "cloud")
    assert plan.edge == ("cars", "by_street")
    assert [c.id for c in plan.channels] == ["cars", DEAD_LETTERS, LATE]


def test_no_two_legal_cuts_differ_only_in_where_a_stream_is_keyed() -> None:
    graph = with_partials(traffic().graph())
    cuts = legal_cuts(graph)
    assert len({cut.edge for cut in cuts}) == len(cuts)
    for cut in cuts:
        assert settled(graph, cut.edge) == cut.edge
        assert set(crossing(graph, cut.edge)) == set(channels(graph, sorted(cut.edge)))
    assert Cut(frozenset({"cars", "by_street"})) not in cuts


@pytest.mark.parametrize("seed", [0, 1])
def test_every_cut_gives_what_the_reference_gives_and_each_dead_letter_once(seed: int) -> None:
    graph, here = traffic().graph(), world(seed)
    want = interpret(graph, here.inputs(), here.bounds_us)
    assert {letter[0] for letter in want.dead} == {"first_letter", "second_letter"}
    shared = 0
    for number, cut in enumerate(legal_cuts(graph)):
        plan = make_plan(graph, sorted(cut.edge))
        assert plan.cut == cut
        shared += any(step.id.endswith("_again") for step in plan.graph.steps)
        check_equal(run_cut(graph, cut, here, random.Random(number)), want)
    assert shared > 1
