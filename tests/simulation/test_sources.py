"""Devices get a source more with a revision while all else goes wrong: every rule holds."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.source_fleet import DOORS, SourceFleet
from tests.drawing import few_and_all

SEEDS = range(12)


@pytest.mark.parametrize("seeds", few_and_all("worlds of sources", SEEDS, 4))
def test_devices_that_get_a_source_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    crossings = rows = 0
    for seed in seeds:
        fleet = SourceFleet(seed)
        with quiet():
            fleet.run()
        crossings += sum(len(legs) - 1 for legs in fleet.legs.values())
        rows += sum(len(found) for (_, channel), found in fleet.checkers.logged().items() if channel == DOORS)
    assert crossings >= len(seeds)
    assert rows > 40 * len(seeds)
