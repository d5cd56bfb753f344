"""The long form of the property of mixed cuts: many more random flows against the naive reference.

Devices have cuts of their own, or go from one to another. `make proofs-long` takes ten times as many.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.reference.comparison import check_mixed, check_moving
from tests.reference.flows import Case, cases, check_drawn, split_cases

FLOWS, SPLIT_FLOWS, LONG = 100, 20, 10
CORES = 2
"""What CI has: each takes its part of the flows, from a seed of its own."""
FIRST_SEED = 100
"""Others than the small form has."""


def check_flows(part: int, count: int, split: int) -> int:
    """Compare `count` flows, and `split` with aggregates that are split; returns how many, and raises with
    the smallest that differs.
    """
    seen = 0

    def check(case: Case) -> None:
        nonlocal seen
        check_mixed(case)
        check_moving(case)
        seen += 1

    for strategy, several in ((cases(down=True), count), (split_cases(), split)):
        check_drawn(check, strategy, FIRST_SEED + part, several)
    return seen


@pytest.mark.parametrize("times", [1, pytest.param(LONG, marks=pytest.mark.long)])
def test_many_random_flows_give_the_same_whichever_device_has_which_cut(times: int) -> None:
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        counts = times * FLOWS // CORES, times * SPLIT_FLOWS // CORES
        parts = [pool.submit(check_flows, part, *counts) for part in range(CORES)]
        assert sum(part.result() for part in parts) >= times * (FLOWS + SPLIT_FLOWS)
