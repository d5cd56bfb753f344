"""Devices get a source with a revision, or lose it again, while all else goes wrong: every rule holds."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.revision_fleet import DOORS
from geartrain_simulation.fleet.source_fleet import SourceFleet
from tests.drawing import few_and_all

SEEDS = range(12)


@pytest.mark.parametrize("seeds", few_and_all("worlds of sources", SEEDS, 4))
def test_devices_that_get_a_source_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    crossings = rows = lasting = 0
    for seed in seeds:
        fleet = SourceFleet(seed)
        with quiet():
            fleet.run()
        crossings += sum(len(legs) - 1 for legs in fleet.legs.values())
        if fleet.until <= len(fleet.forms):
            continue  # the source goes again, from some devices before they have read much of it
        logged, lasting = fleet.checkers.logged(), lasting + 1
        rows += sum(len(found) for (_, channel), found in logged.items() if channel == DOORS)
    assert crossings >= len(seeds)
    assert rows >= 40 * lasting


@pytest.mark.parametrize("seed", [950_010, 950_225])
def test_worlds_that_have_broken_a_rule_before_break_none(seed: int) -> None:
    fleet = SourceFleet(seed)
    with quiet():
        fleet.run()
    assert {legs[-1].number for legs in fleet.legs.values()} == {len(fleet.forms)}
