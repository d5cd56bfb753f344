"""Far more simulated worlds than the quick tests have time for, some of them twice."""

from __future__ import annotations

import resource

from geartrain_simulation.campaign.campaign import run_seeds

SEEDS = 2_000
CORES, SECONDS_MAX = 2, 300
"""What CI has, and how long all of them may take there: counted in the time of the cores, so that what else
runs on the machine does not make it fail.
"""


def test_no_rule_is_broken_in_two_thousand_worlds() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = run_seeds(100_000, SEEDS)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cores_s = (spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime) / CORES
    print(f"{report.done} seeds: {report.seconds:.0f} s, {cores_s:.0f} s of {CORES} cores")
    assert [(one.seed, one.rule, one.detail) for one in report.violations] == []
    assert (report.done, len(report.repeated), report.differ) == (SEEDS, SEEDS // 100, [])
    assert report.crashes > SEEDS
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
    assert cores_s < SECONDS_MAX
