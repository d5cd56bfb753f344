"""Devices go over from revision to revision while all else goes wrong: every rule holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.readings import Reading
from geartrain_simulation.fleet.revision_fleet import RevisionFleet
from geartrain_simulation.fleet.revision_flow import DOWN, UP, Form, Leg, expected, gained
from geartrain_simulation.stores.segments import Row
from tests.drawing import few_and_all

SEEDS = range(20)


@pytest.mark.parametrize("seeds", few_and_all("worlds of revisions", SEEDS, 6))
def test_devices_that_get_other_steps_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    met = Counter[str]()
    for seed in seeds:
        fleet = RevisionFleet(seed)
        with quiet():
            outcome = fleet.run()
        met["crossings"] += sum(len(legs) - 1 for legs in fleet.legs.values())
        ways = (pairwise(legs) for legs in fleet.legs.values())
        met["made anew"] += sum(
            bool(gained(fleet.forms, one.number, other.number))
            for way in ways
            for one, other in way
            if not other.is_fresh
        )
        met["twice"] += sum(len(legs) > 2 for legs in fleet.legs.values())
        met.update({"told too soon": fleet.held, "stale": fleet.stale, "left out": fleet.behind})
        met.update({"with the welcome": fleet.unheard})
        met.update({"deaths": outcome.crashes, "held": outcome.counters.get("held_batches", 0)})
    # The runs have been through something.
    assert met["crossings"] > 0, met
    assert met["deaths"] > 0, met
    if len(seeds) == len(SEEDS):
        assert met["crossings"] > len(SEEDS), met
        rare = ("twice", "told too soon", "stale", "left out", "with the welcome", "made anew")
        assert min(met[what] for what in rare) > 2, met
        assert met["deaths"] > len(SEEDS), met


def test_a_crossing_under_seqs_that_ingest_has_of_other_batches_comes_in_the_next_epoch() -> None:
    fleet = RevisionFleet(940_371)
    with quiet():
        counters = fleet.run().counters
    assert counters["set_back_batches"]
    assert any(len(legs) > 1 for name, legs in fleet.legs.items() if name in fleet.restored)


def test_a_crossing_with_the_welcome_has_its_steps_begin_anew_in_whichever_epoch_it_comes() -> None:
    fleet = RevisionFleet(950_010)
    with quiet():
        assert fleet.run().counters["epochs_opened"] > len(fleet.devices)
    assert [leg.is_fresh for leg in fleet.legs["device-3"]] == [True, True, False]


def test_a_spool_that_was_set_back_to_its_beginning_begins_in_another_epoch() -> None:
    fleet = RevisionFleet(950_225)
    with quiet():
        assert fleet.run().counters["epochs_opened"] > len(fleet.devices)
    assert [leg.number for leg in fleet.legs["device-2"] if leg.is_fresh] == [1, 3]


def test_a_run_is_a_function_of_its_seed() -> None:
    with quiet():
        digests = [RevisionFleet(seed).run().digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("legs", "sums"),
    [
        ([Leg(0, 1)], [1, 3, 6, 10]),
        ([Leg(0, 1), Leg(2, 2)], [1, 3, 33, 73]),
        ([Leg(0, 1), Leg(1, 2), Leg(3, 3)], [1, 21, 51, 4]),
        ([Leg(0, 1), Leg(2, 4)], [1, 3, 3, 7]),
        ([Leg(0, 2), Leg(3, 3, is_fresh=True)], [10, 30, 60, 10]),
    ],
)
def test_the_reference_goes_over_where_it_is_told_to(legs: list[Leg], sums: list[int]) -> None:
    forms = [Form(), Form(factor=10), Form(reset=frozenset({"sums"})), Form()]
    rows = [(Row(n, "d1/readings", n, b"", ("s", n + 1)), Reading("s", n + 1)) for n in range(4)]
    found = expected(rows, legs, forms)
    assert [row.fields[2] for row in found["sums"]] == sums
    assert [row.fields for row in found["readings"]] == [row.fields for row, _ in rows]


def test_the_reference_makes_state_anew_once_for_each_layout_on_its_way() -> None:
    forms = [Form(), Form(layout=2), Form(layout=1), Form(layout=2, reset=frozenset({"sums"}))]
    assert [gained(forms, 1, number) for number in (2, 3, 4)] == [2 * UP, UP, 0]
    assert gained(forms, 2, 3) == DOWN
    rows = [(Row(n, "d1/readings", n, b"", ("s", n + 1)), Reading("s", n + 1)) for n in range(4)]
    found = expected(rows, [Leg(0, 1), Leg(2, 2), Leg(3, 3)], forms)["sums"]
    assert [row.fields[2] for row in found] == [1, 3, 6 + 2 * UP, 10 + 2 * UP + DOWN]
