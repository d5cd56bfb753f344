"""The simulated fleet over far more seeds than the quick tests have time for."""

from __future__ import annotations

import pytest

from geartrain_simulation.fleet import Fleet


@pytest.mark.parametrize("hundred", range(1, 6))
def test_nothing_is_lost_or_doubled_in_five_hundred_more_worlds(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        outcome = Fleet(seed).run()
        assert outcome.counters.get("losses", 0) == outcome.counters.get("quarantined_batches", 0) == 0, seed
