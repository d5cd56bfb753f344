"""An update has a step begin empty while devices take it and leave it: each key does so once."""

from __future__ import annotations

from collections import Counter

import pytest

from geartrain_simulation.campaign.runs import run_seed
from tests.drawing import few_and_all

SEEDS = range(20)


@pytest.mark.parametrize("seeds", few_and_all("worlds of updates that drop", SEEDS, 4))
def test_a_step_that_begins_empty_amid_its_moves_does_so_once(seeds: list[int]) -> None:
    met = Counter[str]()
    for seed in seeds:
        result = run_seed(seed, "dropping")
        assert result.is_good, f"seed {seed}: {result.rule}: {result.detail}"
        met.update(result.counters)
    assert sum(count for what, count in met.items() if what.startswith("anew ")) >= len(seeds)
    if len(seeds) == len(SEEDS):  # few of them show it
        for what in ("cells refused", "anew with a crossing", "anew in the cloud"):
            assert met[what], (what, met)
