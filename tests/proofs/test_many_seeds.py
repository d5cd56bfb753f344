"""Far more simulated worlds than the quick tests have time for, some of them twice: 500 of fleets, 10 of each
other kind, 2,000 and 500 with `make proofs-long`.
"""

from __future__ import annotations

import resource

import pytest

from geartrain_simulation.campaign.campaign import run_seeds
from geartrain_simulation.campaign.runs import USUAL, WORLDS

SEEDS, SEEDS_LONG = 500, 2_000
OF_EACH, OF_EACH_LONG = 10, 500
CORES, SECONDS_MAX = 2, 0.15
"""What CI has, and how long a world may take there: counted in the time of the cores, so that what else
runs on the machine does not make it fail.
"""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(SEEDS_LONG, marks=pytest.mark.long)])
def test_no_rule_is_broken_in_many_worlds(seeds: int) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = run_seeds(100_000, seeds)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cores_s = (spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime) / CORES
    print(f"{report.done} seeds: {report.seconds:.0f} s, {cores_s:.0f} s of {CORES} cores")
    assert [(one.seed, one.rule, one.detail) for one in report.violations] == []
    assert (report.done, len(report.repeated), report.differ) == (seeds, seeds // 100, [])
    assert report.crashes > seeds
    for fault in ("drop up", "drop down", "duplicate", "reorder", "delay", "undelivered"):
        assert report.faults.get(fault, 0) > 100, fault
    for counter in (
        "duplicates",
        "reordered_batches",
        "gaps",
        "records_dropped",
        "devices_excluded",
        "segments_merged",
    ):
        assert report.counters.get(counter, 0) > 10, counter
    assert cores_s < SECONDS_MAX * seeds


@pytest.mark.parametrize("seeds", [OF_EACH, pytest.param(OF_EACH_LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", sorted(WORLDS.keys() - {USUAL}))
def test_no_rule_is_broken_in_many_worlds_of_another_kind(kind: str, seeds: int) -> None:
    report = run_seeds(100_001, seeds, kind=kind, workers=1)
    assert [(one.seed, one.rule, one.detail) for one in report.violations] == []
    assert (report.done, report.differ) == (seeds, [])
