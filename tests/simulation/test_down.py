"""The way down in a simulated fleet: right whatever strikes, and wrong where a fault is planted."""

from __future__ import annotations

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.down_fleet import DownFleet
from geartrain_simulation.mutants.of_down import restored_outbox

SEEDS = 40


def test_each_device_does_what_it_was_told_once_and_in_order() -> None:
    with quiet():
        crashes = sum(DownFleet(seed).run() for seed in range(SEEDS))
    assert crashes > SEEDS  # else nothing was tried


def test_a_run_is_a_function_of_its_seed() -> None:
    def digest(seed: int) -> str:
        fleet = DownFleet(seed)
        fleet.run()
        return fleet.world.trace.digest

    with quiet():
        assert digest(3) == digest(3) != digest(4)


def test_an_outbox_that_goes_back_to_a_backup_loses_nothing_that_is_written_after() -> None:
    with quiet():
        crashes = sum(restored_outbox(seed) for seed in range(15))
    assert crashes >= 15
