"""The long form of moves: many more random flows whose devices go from cut to cut, against the reference."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from geartrain.planning.splitting import with_partials
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.flows import drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.moving import Seen, run_moving
from tests.reference.moving_flows import moving_cases
from tests.state.test_random_moves import MOVED

FLOWS, SPLITS, RUNS = 300, 60, 3
CORES = 2
"""What CI has: each takes its part of the flows, from a seed of its own."""


def check_moves(part: int) -> Counter[str]:
    """Compare the flows of one part; returns what moved."""
    seen = Seen()
    for case in drawn(moving_cases(), 100 + part, FLOWS) + drawn(split_cases(), 100 + part, SPLITS):
        want = interpret(case.graph, case.world.inputs(), case.world.bounds_us)
        cuts = drawn_cuts(case.graph, case.rng(), 24)
        for number in range(RUNS):
            rng = random.Random(case.seed + number)
            found = run_moving(with_partials(case.graph), cuts, case.world, rng, seen=seen)
            try:
                check_equal(found, want)
            except AssertionError as error:
                raise AssertionError(f"{case!r}\n{error}") from error
    return seen.counts


def test_results_of_many_flows_whose_devices_move_equal_the_reference() -> None:
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        counts = sum(pool.map(check_moves, range(CORES)), Counter[str]())
    lacking = [kind for kind in MOVED if not (counts[f"up {kind}"] and counts[f"down {kind}"])]
    assert not lacking, (lacking, counts)
    assert min(counts["gone back"], counts["rows held"]) > 0 == counts["overtaken"], counts
