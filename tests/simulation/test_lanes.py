"""Control lanes in a simulated fleet: right whatever strikes, and wrong where a fault is planted."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.lane_fleet import (
    DAY_S,
    ClonedDevice,
    LaneFleet,
    RestoredDevice,
    RestoredStore,
)
from tests.drawing import few_and_all

SEEDS = range(40)
STEPS = range(1, 80)
COPIES = range(10)
"""Of worlds in which a node goes back to a copy, or there are two of it."""


@pytest.mark.parametrize("seeds", few_and_all("worlds of lanes", SEEDS, 10))
def test_a_device_applies_each_state_once_in_order_and_the_newest_in_the_end(seeds: list[int]) -> None:
    with quiet():
        crashes = sum(LaneFleet(seed).run() for seed in seeds)
    assert crashes > (len(SEEDS) if len(seeds) == len(SEEDS) else 0)  # else nothing was tried


@pytest.mark.parametrize("steps", few_and_all("steps of lanes", STEPS, 20))
@pytest.mark.parametrize("node", ["control", "device-1"])
def test_a_kill_at_any_step_changes_nothing(node: str, steps: list[int]) -> None:
    with quiet():
        for number in steps:
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


@pytest.mark.parametrize("seeds", few_and_all("worlds with a copy", COPIES, 3))
@pytest.mark.parametrize("kind", [RestoredStore, RestoredDevice])
def test_a_store_or_a_device_that_goes_back_to_a_copy(kind: type[LaneFleet], seeds: list[int]) -> None:
    with quiet():
        assert all(kind(seed).run() > 0 for seed in seeds)


@pytest.mark.parametrize("seeds", few_and_all("worlds with two of one card", COPIES, 3))
def test_two_devices_with_one_card_are_named_and_the_right_one_goes_on(seeds: list[int]) -> None:
    with quiet():
        assert all(ClonedDevice(seed).run() > 0 for seed in seeds)


@pytest.mark.parametrize("devices", [200, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_submit_reaches_all_devices_within_thirty_seconds(devices: int) -> None:
    with quiet():
        fleet = LaneFleet(1, devices, calm=True)
        fleet.run()
    assert len(fleet.applied) == devices
    assert all(applied for applied in fleet.applied.values())
