"""Devices take a step with its state and leave it again while all else goes wrong: every rule holds."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from geartrain_simulation.campaign.runs import run_seed
from geartrain_simulation.fleet.claiming_fleet import DOWNLINK, TOO_LARGE, ClaimingFleet
from geartrain_simulation.fleet.spark_model import SparkModel
from geartrain_simulation.fleet.troubles import READER
from tests.drawing import few_and_all

SEEDS = range(12)


@pytest.mark.parametrize("seeds", few_and_all("worlds of claims", SEEDS, 4))
def test_devices_that_claim_state_in_a_bad_world_break_no_rule(seeds: list[int]) -> None:
    met = Counter[str]()
    for seed in seeds:
        result = run_seed(seed, "claiming")
        assert result.is_good, f"seed {seed}: {result.rule}: {result.detail}"
        met.update(result.counters)
    assert met["crossings"]
    if len(seeds) == len(SEEDS):
        assert met["cells_taken"] > len(SEEDS)
        assert met["crossings"] > len(SEEDS)
        assert met["next_code"] > len(SEEDS) // 4


def test_what_is_too_large_to_come_is_claimed_once_in_each_life() -> None:
    found = [ClaimingFleet(seed, TOO_LARGE).run().counters for seed in range(2)]
    assert all(one["claims_too_large"] and not one["cells_taken"] for one in found)


def test_what_had_arrived_of_a_commit_whose_rest_was_lost_with_its_spool_comes_twice() -> None:
    result = run_seed(910_281, "claiming")
    assert result.is_good, f"{result.rule}: {result.detail}"
    assert result.counters["come_twice"]


class Quiet(ClaimingFleet):
    """One in which nothing goes wrong but that agents are stopped, and that a node dies at one point."""

    def __init__(self, seed: int, doomed: tuple[str, str, int] | None = None) -> None:
        super().__init__(seed)
        self.faults = tuple(fault for fault in self.faults if fault.kind == "stop")
        self._doomed_at, self._doomed = doomed, False
        self.first_given = 0
        """The micro-batch that has first given cells, from 1."""

    def _arrange(self) -> None:
        super()._arrange()
        if self._doomed_at is not None:
            node, point, nth = self._doomed_at
            self.world.nodes[node].kill_at_point(nth, point)

    def _lose_outbox(self) -> None:
        """It stays."""

    def _strike_at(self, node: str, random: Random) -> None:
        """No device dies."""

    def _reader(self) -> SparkModel:
        model, right = super()._reader(), self.host._give

        async def give(process: Any, random: Any, number: int, batches: Any) -> None:
            self.first_given = self.first_given or (number + 1 if batches else 0)
            await right(process, random, number, batches)

        setattr(self.host, "_give", give)  # noqa: B010 - of one object
        return model


QUIET = 5
HOST_POINTS = ("plan done", "read", "give", "give done", "write", "write done", "commit", "commit done")
DOWN_POINTS = ("outbox.read", "outbox.trim", "outbox.trim done", "net.publish", "net.publish done")
POINTS = [*((READER, f"spark.{one}") for one in HOST_POINTS), *((DOWNLINK, one) for one in DOWN_POINTS)]


@pytest.mark.slow
@pytest.mark.parametrize("points", few_and_all("points of a claim", POINTS, 4))
def test_a_kill_of_the_host_at_any_step_of_what_gives_cells_changes_nothing(
    points: list[tuple[str, str]],
) -> None:
    quiet = Quiet(QUIET)
    quiet.run()
    assert quiet.first_given
    for node, point in points:
        fleet = Quiet(QUIET, (node, point, quiet.first_given if node == READER else 1))
        fleet.run()
        assert fleet.world.nodes[node].crashes == 1, point
        assert fleet.host.cells_given, point
