"""Devices that go from cut to cut while they run: random flows, whose results are those of the reference.

A device goes edge, cloud, edge, cloud at random records, with what its steps have kept; values, event times,
origins, late records and dead letters are compared bit for bit. Mistakes that are planted in the model of the
two tiers must each be found. The flows are the same in every run; tests/proofs draws more.
"""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

from geartrain.planning import Cut
from geartrain.planning.splitting import with_partials
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.flows import Case, drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.moving import Fault, Seen, run_moving
from tests.reference.moving_flows import moving_cases
from tests.reference.rows import Answer

FLOWS, SPLITS = 100, 20
RUNS = 2
"""Of each flow: other crossings, at other records."""
MOVED = {
    *("fold", "interval_join", "order", "process", "reduce", "window_aggregate", "window_fold"),
    *("window_join", "window_reduce", "aggregate"),
}
"""Every kind of step that may stand on both tiers; the proofs move each of them."""


SEED, FAULTY_SEED = 4, 3
"""Of the flows in which all kinds of steps move, and of those in which each planted mistake shows."""


@lru_cache(maxsize=2)
def _flows(seed: int) -> list[tuple[Case, list[Cut], Answer]]:
    """Flows, their cuts, and what the reference answers."""
    found = drawn(moving_cases(), seed, FLOWS)
    return [(case, drawn_cuts(case.graph, case.rng(), 24), _wanted(case)) for case in found]


def _wanted(case: Case) -> Answer:
    return interpret(case.graph, case.world.inputs(), case.world.bounds_us)


def test_results_of_devices_that_go_from_cut_to_cut_are_those_of_the_reference() -> None:
    seen = Seen()
    splits = [(case, drawn_cuts(case.graph, case.rng(), 24), _wanted(case)) for case in _splits()]
    for case, cuts, want in _flows(SEED) + splits:
        for number in range(RUNS):
            rng = random.Random(case.seed + number)
            found = run_moving(with_partials(case.graph), cuts, case.world, rng, seen=seen)
            try:
                check_equal(found, want)
            except AssertionError as error:
                raise AssertionError(f"{case!r}\n{error}") from error
    for what in ("cells up", "cells down", "rows held", "gone back", "taken back"):
        assert seen.counts[what] > FLOWS // 4, seen.counts
    assert seen.counts["put out partial_aggregate"] > SPLITS, seen.counts
    assert seen.counts["overtaken"] == 0
    lacking = {kind for kind in MOVED if not (seen.counts[f"up {kind}"] and seen.counts[f"down {kind}"])}
    assert len(lacking) < 3, (lacking, seen.counts)


def _splits() -> list[Case]:
    return drawn(split_cases(), 5, SPLITS)


@pytest.mark.parametrize("fault", list(Fault))
def test_planted_mistakes_are_found(fault: Fault) -> None:
    for case, cuts, want in [*_flows(FAULTY_SEED), *_flows(SEED)]:
        for number in range(3):
            rng = random.Random(case.seed + number)
            try:
                check_equal(run_moving(with_partials(case.graph), cuts, case.world, rng, {fault}), want)
            except AssertionError as error:
                assert error.args  # noqa: PT017 - the comparison says where
                return
    raise AssertionError(f"nothing finds {fault.name}: {fault}")
