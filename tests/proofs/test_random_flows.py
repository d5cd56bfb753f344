"""The long form of the property of cuts: many more random flows against the naive reference; 5,000 with
`make proofs-long`.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.reference.comparison import check_case
from tests.reference.flows import Case, cases, check_drawn

FLOWS, FLOWS_LONG = 400, 5_000
CORES = 2
"""What CI has: each takes its part of the flows, from a seed of its own."""


def check_flows(part: int, count: int) -> int:
    """Compare `count` flows; returns how many, and raises with the smallest that differs."""
    seen = 0

    def check(case: Case) -> None:
        nonlocal seen
        check_case(case)
        seen += 1

    check_drawn(check, cases(down=True), part, count)
    return seen


@pytest.mark.parametrize("flows", [FLOWS, pytest.param(FLOWS_LONG, marks=pytest.mark.long)])
def test_every_legal_cut_of_many_random_flows_equals_the_reference(flows: int) -> None:
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(check_flows, part, flows // CORES) for part in range(CORES)]
        assert sum(part.result() for part in parts) >= flows
