"""Devices go over from cut to cut while all else goes wrong: every rule holds."""

from __future__ import annotations

from collections import Counter

import pytest

from geartrain_simulation.campaign.runs import run_seed
from tests.drawing import few_and_all

SEEDS = range(24)


@pytest.mark.parametrize("seeds", few_and_all("worlds of crossings", SEEDS, 8))
def test_devices_that_go_over_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    met = Counter[str]()
    for seed in seeds:
        result = run_seed(seed, "crossing")
        assert result.is_good, f"seed {seed}: {result.rule}: {result.detail}"
        met.update(result.counters)
    assert met["crossings"] > len(seeds) // 4
