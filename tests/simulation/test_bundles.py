"""The real parent in worlds in which code comes over the air, fails or stays, and goes back."""

from __future__ import annotations

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.bundle_fleet import BundleFleet

SEEDS = 8


def test_devices_run_what_is_wanted_or_what_has_worked() -> None:
    with quiet():
        crashes = sum(BundleFleet(seed).run() for seed in range(SEEDS))
    assert crashes > SEEDS
