"""The keys of a flow are dealt over other slots: how long its tables get nothing.

A stream of 1,000 records a second, with so many keys that have state, goes from 2 slots to 8 and back. The
pause is the longest time between two commits of its tables from the moment at which other slots are wanted,
less the median before it. Every record is in the table once: by key, as many rows as records.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.pauses import CHANGES, pause_ms, report
from tests.bench.test_bench_hosting import PATIENCE_S, Watched
from tests.bench.test_bench_revisions import AROUND_S, Feeder, assert_each_once, commits_of
from tests.hosting.hosted import Hosting
from tests.hosting.test_revisions import APP, River

pytestmark = pytest.mark.long

FEW, MANY = 2, 8
GOAL_MS = 6_000.0


def _changes(hosting: Hosting, river: River, watched: Watched, count: int) -> list[float]:
    found, wanted = [], river.wanted

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        hosting.until(lambda: time.monotonic() > until, PATIENCE_S, show=False)

    for number in range(count):
        slots = FEW if number % 2 else MANY
        wait(AROUND_S)
        at_s = time.monotonic()
        wanted.flows[APP]["slots"] = slots
        wanted.write()
        hosting.until(lambda slots=slots: wanted.status(APP)["slots"] == slots, PATIENCE_S)  # type: ignore[misc]
        done_s = time.monotonic()
        wait(AROUND_S)
        found.append(pause_ms(commits_of(watched), at_s, done_s + AROUND_S))
    return found


@pytest.mark.parametrize("keys", CHANGES)
def test_other_slots(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    river = River(tmp_path, monkeypatch)
    river.want("three")
    feeder = Feeder(river, keys)
    feeder.append(keys)
    hosting = Hosting(spark, river.wanted)
    try:
        watched = Watched(hosting)
        hosting.through(APP, wait_s=PATIENCE_S)
        feeder.start()
        hosting.until(lambda: len(commits_of(watched)) > 2, PATIENCE_S)
        pauses = _changes(hosting, river, watched, CHANGES[keys])
        feeder.stopping.set()
        feeder.join()
        hosting.through(APP, wait_s=PATIENCE_S)
        assert_each_once(river.wanted.tables(APP), feeder.records, keys)
    finally:
        feeder.stopping.set()
        hosting.close()
        river.wanted.close()
    report("other slots", keys, pauses, GOAL_MS)
