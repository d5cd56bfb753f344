"""Real agents and a real ingest in a bad world: nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from geartrain_simulation.faults import Faults
from geartrain_simulation.fleet import Fleet, Outcome

SEEDS = 50
PIECES = 5

@pytest.mark.parametrize("piece", range(PIECES))
def test_nothing_is_lost_or_doubled(piece: int) -> None:
    outcomes = [Fleet(seed).run() for seed in range(piece, SEEDS, PIECES)]
    # The runs have been through something.
    assert sum(outcome.crashes for outcome in outcomes) > 2 * len(outcomes)
    for fault in ("drop up", "drop down", "duplicate", "reorder", "undelivered"):
        assert any(outcome.faults.get(fault, 0) > 1 for outcome in outcomes), fault
    for counter in ("duplicates", "reordered_batches", "epochs_opened"):
        assert any(outcome.counters.get(counter, 0) > 1 for outcome in outcomes), counter
    for counter in (
        "losses",
        "digest_conflicts",
        "digest_mismatches",
        "quarantined_batches",
        "records_overtaken",
    ):
        assert not any(outcome.counters.get(counter, 0) for outcome in outcomes), counter


def test_batches_that_are_damaged_on_the_way_are_refused_and_come_again() -> None:
    def damage(fleet: Fleet) -> None:
        fleet.broker.faults = Faults(damage=0.2, damage_filter="geartrain/v1/+/+/+/up")
        fleet.world.later(8.0, heal, fleet)

    def heal(fleet: Fleet) -> None:
        fleet.broker.faults = Faults()

    outcomes = [Fleet(seed, plot=damage).run() for seed in range(6)]
    assert sum(outcome.faults.get("damage", 0) for outcome in outcomes) > 30
    for counter in ("digest_mismatches", "malformed_batches", "quarantined_batches"):
        assert sum(outcome.counters.get(counter, 0) for outcome in outcomes) > 0, counter
    assert not any(outcome.counters.get("losses", 0) for outcome in outcomes)


RUN = """
import json, logging, sys
from geartrain_simulation.fleet import Fleet
logging.disable(logging.CRITICAL)
print(json.dumps([Fleet(int(seed)).run().digest for seed in sys.argv[1:]]))
"""


def digests_of_another_process(hash_seed: str, seeds: list[int]) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", RUN, *map(str, seeds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_seed_gives_one_trace_in_every_process() -> None:
    seeds = [2, 5, 8]
    here = [Fleet(seed).run().digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    assert digests_of_another_process("1", seeds) == here
    assert digests_of_another_process("2", seeds) == here


def test_an_outcome_tells_what_the_run_was_like() -> None:
    outcome: Outcome = Fleet(3).run()
    assert outcome.steps > 100
    assert outcome.virtual_s > 1
    assert outcome.counters["records_logged"] > 80
