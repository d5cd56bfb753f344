"""A roster that lives while ingest is killed: the log follows it, and nothing is lost, doubled or held up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from msgspec.structs import replace

from geartrain_cloud.ports import EntryKind
from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.roster_fleet import RosterFleet
from tests.drawing import few_and_all

SEEDS = range(24)
STEPS = range(1, 300, 40)


@pytest.mark.parametrize("seeds", few_and_all("worlds of rosters", SEEDS, 8))
def test_apps_and_devices_come_and_go_and_the_log_follows(seeds: list[int]) -> None:
    moved, counters, crashes, kinds = Counter[str](), Counter[str](), 0, Counter[EntryKind]()
    for seed in seeds:
        fleet = RosterFleet(seed)
        with quiet():
            outcome = fleet.run()
        moved.update(fleet.moved)
        counters.update({name: n for name, n in outcome.counters.items() if "/" not in name})
        crashes += outcome.crashes
        kinds.update(entry.kind for entry in fleet.ledger.all_entries())
    # The runs have been through something.
    assert crashes > 0
    assert counters["records_logged"] > 0
    if len(seeds) == len(SEEDS):
        assert_much_was_met(moved, counters, crashes, kinds)


def assert_much_was_met(
    moved: Counter[str], counters: Counter[str], crashes: int, kinds: Counter[EntryKind]
) -> None:
    assert crashes > len(SEEDS)
    assert all(moved[what] > 10 for what in ("submit", "end", "retire", "assign", "exchange")), moved
    assert moved["change"] > 3, moved
    assert all(kinds[kind] > 3 for kind in (EntryKind.RETIRED, EntryKind.ENDED, EntryKind.LACKS)), kinds
    assert counters["records_disowned"] > 100
    assert counters["roster_refused"] > 3
    assert counters["records_logged"] > 1_000


@pytest.mark.parametrize("seed", [93, 930_067, 836_922_040])
def test_worlds_that_have_broken_a_rule_before_break_none(seed: int) -> None:
    with quiet():  # a broken rule raises
        assert RosterFleet(seed).run().steps > 1_000


async def until(condition: Callable[[], bool]) -> None:
    """Let virtual time pass until a condition holds."""
    for _ in count():
        if condition():
            return
        await asyncio.sleep(0.001)


class AssignedAndRetiredAtOnce(RosterFleet):
    """As all is calm again, ingest has read that a device was assigned, and not yet that it was retired. The
    log knows neither, so that it looks as the roster wants it.
    """

    def _doom_ingest(self) -> None:
        self.roster.unreadable = 0.0

    async def _change_for(self, seconds: float) -> None:
        (instance, *_), post = self.instances, self.posts[0]
        self.roster.put(instance, replace(self._document, devices={}))
        await until(lambda: self.roster.taken == self.roster.serial)
        self.roster.assign(instance, post.device.name, post.sources)
        assigned_s = self.world.loop.time()
        await until(lambda: self.world.trace.newest["roster.read done"] > assigned_s)
        self.roster.retire(instance, post.device.name)
        assert self.checkers.members.all == set()
        assert self.roster.taken < self.roster.serial - 1


@pytest.mark.parametrize("seed", range(5))
def test_the_end_waits_for_ingest_to_read_what_leaves_the_log_as_it_was(seed: int) -> None:
    with quiet():  # a broken rule raises
        fleet = AssignedAndRetiredAtOnce(seed)
        fleet.run()
    assert fleet.roster.taken == fleet.roster.serial
    assert fleet.checkers.members.all == set()


@pytest.mark.parametrize("steps", few_and_all("steps of rosters", STEPS, 3))
def test_a_kill_at_any_step_changes_nothing(steps: list[int]) -> None:
    with quiet():
        for number in steps:
            fleet = RosterFleet(2)
            fleet.ingest.kill_at_point(number, power=number % 2 == 0)
            assert fleet.run().crashes > 0


def test_a_run_is_a_function_of_its_seed() -> None:
    with quiet():
        digests = [RosterFleet(seed).run().digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]
