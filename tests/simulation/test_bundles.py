"""The real parent in worlds in which code comes over the air, fails or stays, and goes back: of apps, and its
own.
"""

from __future__ import annotations

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.bundle_fleet import BundleFleet
from geartrain_simulation.fleet.program_fleet import ProgramFleet

SEEDS = 8


def test_devices_run_what_is_wanted_or_what_has_worked() -> None:
    with quiet():
        crashes = sum(BundleFleet(seed).run() for seed in range(SEEDS))
    assert crashes > SEEDS


def test_devices_run_the_program_that_is_wanted_or_one_that_has_worked() -> None:
    with quiet():
        crashes = sum(ProgramFleet(seed).run() for seed in range(SEEDS))
    assert crashes > SEEDS
