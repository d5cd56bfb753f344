"""I1 where devices have different cuts: random flows give what the naive reference gives.

That is so whichever device has which cut, and where devices go from one cut to another.

The cloud runs one plan for all of them. The flows are the same in every run; tests/proofs draws others.
"""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest

from geartrain import Flow, Record, Table
from geartrain.graph.graph import Graph
from geartrain.planning import choose_cut
from geartrain.testing import TestingSource
from tests.reference.comparison import check_equal, check_mixed, check_moving
from tests.reference.flows import Case, cases, check_drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import World, run_mixed

FLOWS, SPLIT_FLOWS, MOVING_FLOWS, WRONG_FLOWS = 70, 20, 40, 60
DRAWN_MIN = 4
MET = {
    *("arrival", "union", "variant", "different cuts", "order", "process", "window_aggregate"),
    *("partial_aggregate", "merge_partials", "interval_join", "key_by", "deal"),
}
"""What the random flows must have in their cloud parts."""


def test_devices_with_cuts_of_their_own_give_what_any_single_cut_gives() -> None:
    met: Counter[str] = Counter()

    def check(case: Case) -> None:
        met.update(check_mixed(case))

    check_drawn(check, cases(down=True), 9, FLOWS)
    check_drawn(check, split_cases(), 2, SPLIT_FLOWS)
    assert {name: met[name] for name in MET if met[name] < DRAWN_MIN} == {}


def test_devices_that_go_from_one_cut_to_another_give_what_any_single_cut_gives() -> None:
    moved = 0

    def check(case: Case) -> None:
        nonlocal moved
        moved += check_moving(case, draws=1)

    check_drawn(check, cases(), 1, MOVING_FLOWS)
    assert moved > MOVING_FLOWS / 2


def test_rows_that_are_fed_to_all_readers_are_found() -> None:
    """A device that sends a stream, and what it made of it, would have that made again in the cloud."""
    wrong = []

    def check(case: Case) -> None:
        try:
            check_mixed(case, draws=1)
        except AssertionError as error:
            wrong.append(str(error))

    with patch("geartrain.planning.plan.readers_on_edge", lambda graph, stream, edge: ()):
        check_drawn(check, cases(), 1, WRONG_FLOWS)
    assert wrong


class Reading(Record):
    sensor: str
    value: int


def flags() -> Graph:
    """Readings, all of them and those that are flagged."""
    flow = Flow("heat")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    readings.sink("all", Table("all"))
    readings.filter(lambda one: one.value > 1, name="flag").sink("flagged", Table("flagged"))
    return flow.graph()


@pytest.mark.parametrize("base", ["cloud", "flag"])
def test_a_reader_on_one_device_is_left_out_for_that_device_alone(base: str) -> None:
    graph = flags()
    items = {name: [(time, Reading(name, time)) for time in range(4)] for name in ("a", "b")}
    devices = {name: {"readings": {f"{name}/readings": rows}} for name, rows in items.items()}
    world = World(devices, {"readings": 0})
    case = Case([], world, 1, Flow("heat"))
    want = interpret(graph, world.inputs(), world.bounds_us)
    cuts = [choose_cut(graph, cut) for cut in ("cloud", "flag")]
    found = run_mixed(graph, choose_cut(graph, base), cuts, world, case.rng())
    check_equal(found, want)
    assert [row.value.value for row in found.sinks["flagged"]] == [2, 2, 3, 3]
