"""Devices leave a step to the cloud with its state while all else goes wrong: every rule holds."""

from __future__ import annotations

from collections import Counter

import pytest

from geartrain.graph.graph import STATE
from geartrain_simulation.campaign.runs import run_seed
from tests.drawing import few_and_all

SEEDS = range(16)


@pytest.mark.parametrize("seeds", few_and_all("worlds of leaving", SEEDS, 5))
def test_devices_that_leave_a_step_with_its_state_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    met = Counter[str]()
    for seed in seeds:
        result = run_seed(seed, "leaving")
        assert result.is_good, f"seed {seed}: {result.rule}: {result.detail}"
        met.update(result.counters)
    if len(seeds) == len(SEEDS):  # few of them show it
        assert met[f"rows:fleet/{STATE}"] > len(SEEDS) // 4
