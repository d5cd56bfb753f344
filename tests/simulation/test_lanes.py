"""Control lanes in a simulated fleet: right whatever strikes, and wrong where a fault is planted."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.lane_fleet import DAY_S, LaneFleet, RestoredDevice, RestoredStore
from geartrain_simulation.mutants.of_lanes import OF_LANES
from geartrain_simulation.mutants.planting import Mutant, first_kill

SEEDS = 40
RULES = {
    "sources that a device lacks not said": "reported",
    "desired state applied before it is kept": "applied => kept",
    "lower serial applied": "once, in order",
    "desired state applied twice": "once, in order",
    "desired state of another connection applied": "of this connection",
    "serial forgotten at a start": "control gone",
    "report answered before it is stored": "answered => stored",
    "older report taken for a newer one": "reports in order",
    "restored control store not refused": "refused",
    "desired state sent once": "reached",
    "report sent once": "reported",
    "life not renewed after a restore": "reached",
    "control lane subscribes once": "reached",
    "process of an app not awaited": "one process an app",
    "apps end when control is gone": "control gone",
}


def test_a_device_applies_each_state_once_in_order_and_the_newest_in_the_end() -> None:
    with quiet():
        crashes = sum(LaneFleet(seed).run() for seed in range(SEEDS))
    assert crashes > SEEDS  # else nothing was tried


@pytest.mark.parametrize("node", ["control", "device-1"])
def test_a_kill_at_any_step_changes_nothing(node: str) -> None:
    with quiet():
        for number in range(1, 80):
            fleet = LaneFleet(0, 1)
            fleet.kills = [(node, number)]
            assert fleet.run() > 0


def test_a_run_is_a_function_of_its_seed() -> None:
    def digest(seed: int) -> str:
        fleet = LaneFleet(seed)
        fleet.run()
        return fleet.world.trace.digest

    with quiet():
        assert digest(3) == digest(3) != digest(4)


def test_control_gone_for_a_day_changes_nothing_of_what_runs() -> None:
    with quiet():
        assert LaneFleet(1, 2, away_s=DAY_S).run() > 4


@pytest.mark.parametrize("kind", [RestoredStore, RestoredDevice])
def test_a_store_or_a_device_that_goes_back_to_a_copy(kind: type[LaneFleet]) -> None:
    with quiet():
        assert all(kind(seed).run() > 0 for seed in range(10))


@pytest.mark.slow
def test_a_submit_reaches_a_thousand_devices_within_thirty_seconds() -> None:
    with quiet():
        fleet = LaneFleet(1, 1_000, calm=True)
        fleet.run()
    assert len(fleet.applied) == 1_000
    assert all(applied for applied in fleet.applied.values())


@pytest.mark.parametrize("mutant", OF_LANES, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    kill = first_kill(mutant, range(SEEDS))
    assert kill is not None, f"{mutant.name} survives"
    assert kill.how.startswith(f"ViolationError: {RULES[mutant.name]}: ")
