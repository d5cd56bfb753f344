"""The way down in a simulated fleet: right whatever strikes, and wrong where a fault is planted."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.down_fleet import DownFleet
from tests.drawing import few_and_all
from tests.mutants.of_down import restored_outbox

SEEDS = range(40)
RESTORED = range(15)


@pytest.mark.parametrize("seeds", few_and_all("worlds of the way down", SEEDS, 12))
def test_each_device_does_what_it_was_told_once_and_in_order(seeds: list[int]) -> None:
    with quiet():
        crashes = sum(DownFleet(seed).run() for seed in seeds)
    assert crashes > len(SEEDS) or len(seeds) < len(SEEDS)  # else nothing was tried


def test_a_run_is_a_function_of_its_seed() -> None:
    def digest(seed: int) -> str:
        fleet = DownFleet(seed)
        fleet.run()
        return fleet.world.trace.digest

    with quiet():
        assert digest(3) == digest(3) != digest(4)


@pytest.mark.parametrize("seeds", few_and_all("worlds with a former outbox", RESTORED, 5))
def test_an_outbox_that_goes_back_to_a_backup_loses_nothing_that_is_written_after(seeds: list[int]) -> None:
    with quiet():
        crashes = sum(restored_outbox(seed) for seed in seeds)
    assert crashes >= (len(RESTORED) if len(seeds) == len(RESTORED) else 1)
