"""Devices take a step with its state and leave it again while all else goes wrong: every rule holds."""

from __future__ import annotations

from collections import Counter

from geartrain_simulation.campaign.runs import run_seed

SEEDS = range(12)


def test_devices_that_claim_state_in_a_bad_world_break_no_rule() -> None:
    met = Counter[str]()
    for seed in SEEDS:
        result = run_seed(seed, "claiming")
        assert result.is_good, f"seed {seed}: {result.rule}: {result.detail}"
        met.update(result.counters)
    assert met["cells_taken"] > len(SEEDS)
    assert met["crossings"] > len(SEEDS)
