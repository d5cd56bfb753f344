"""The way down in a simulated fleet: right whatever strikes, and wrong where a fault is planted."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.down_fleet import DownFleet
from geartrain_simulation.mutants.of_down import MUTANTS, restored_outbox
from geartrain_simulation.mutants.planting import Mutant, first_kill

SEEDS = 40
RULES = {
    "down outbox of another app": "of its app",
    "down taken out of order": "each once, in order",
    "down trimmed without digest check": "each once, in order",
    "down trimmed on puback": "trimmed <= acked",
    "down acked before commit": "acked <= durable",
    "down applied twice": "each once, in order",
    "down sent before commit": "sent <= committed",
    "file not cut off": "each once, in order",
}


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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    kill = first_kill(mutant, range(SEEDS))
    assert kill is not None, f"{mutant.name} survives"
    assert kill.how.startswith(f"ViolationError: {RULES[mutant.name]}: ")
