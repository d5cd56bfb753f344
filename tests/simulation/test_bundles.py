"""The real parent in worlds in which code comes over the air, fails or stays, and goes back: of apps, and its
own.
"""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.bundle_fleet import BundleFleet
from geartrain_simulation.fleet.program_fleet import ProgramFleet
from tests.drawing import few_and_all

SEEDS = range(8)


@pytest.mark.parametrize("seeds", few_and_all("worlds of bundles", SEEDS, 3))
def test_devices_run_what_is_wanted_or_what_has_worked(seeds: list[int]) -> None:
    with quiet():
        crashes = sum(BundleFleet(seed).run() for seed in seeds)
    assert crashes > (len(SEEDS) if len(seeds) == len(SEEDS) else 0)


@pytest.mark.parametrize("seeds", few_and_all("worlds of programs", SEEDS, 3))
def test_devices_run_the_program_that_is_wanted_or_one_that_has_worked(seeds: list[int]) -> None:
    with quiet():
        crashes = sum(ProgramFleet(seed).run() for seed in seeds)
    assert crashes > (len(SEEDS) if len(seeds) == len(SEEDS) else 0)


def test_a_program_that_has_worked_and_was_damaged_since_is_tried_anew() -> None:
    with quiet():  # a broken rule raises
        assert ProgramFleet(7_000_000_086).run() > 0
