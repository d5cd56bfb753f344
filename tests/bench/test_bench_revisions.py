"""A flow goes over to another revision in the data centre: how long its tables get nothing.

A stream of 1,000 records a second, with so many keys that have state. One revision has a step behind another
shuffle, the next has a window and a further column instead; the flow goes from one to the other and back. The
pause is the longest time between two commits of its tables around the boundary, less the median before it.
Every record is in the table once: by key, as many rows as records.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.offsets import positions_by_name
from tests.bench.harness import SIZE
from tests.bench.pauses import CHANGES, RATE, pause_ms, report
from tests.bench.test_bench_hosting import PATIENCE_S, Watched
from tests.hosting.hosted import Hosting
from tests.hosting.mill_log import T0_US
from tests.hosting.test_revisions import APP, River
from tests.spark.flows import Reading

pytestmark = pytest.mark.long

EVERY_S = 0.05
AROUND_S = max(1.0, 6.0 * min(1.0, SIZE))
"""So long the stream runs before and behind a boundary."""
ROWS_PER_ENTRY = 1_000
GOAL_MS = 1_500.0


class Feeder(threading.Thread):
    """Appends to the flow's log, each key in its turn, and brings a revision when it is asked to."""

    def __init__(self, river: River, keys: int) -> None:
        super().__init__(daemon=True)
        self._writer, self._keys = river.log.writer, keys
        self.stopping, self.records, self.at_s = threading.Event(), 0, 0.0
        self.asked = 0
        """The revision that is to be brought, 0 for none."""

    def append(self, count: int) -> None:
        numbers = range(self.records, self.records + count)
        found = [
            (Reading(f"s{n % self._keys}", 1.0), T0_US + n * 1_000, "device-1/readings", n) for n in numbers
        ]
        self.records += count
        self._writer.append("readings", found, rows_per_entry=ROWS_PER_ENTRY, clock=found[-1][1])

    def run(self) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            if self.asked:
                self.at_s = time.monotonic()
                self._writer.revise(self.asked)
                self.asked = 0
            self.append(round(RATE * EVERY_S))
            due += EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))


def commits_of(watched: Watched) -> list[float]:
    """When micro-batches that moved the flow were in its tables."""
    found, before = list[float](), 0
    for at, ran in watched.ran:
        ends = [sum(p.values()) for name, p in positions_by_name(ran.offsets).items() if name.startswith(APP)]
        if max(ends, default=0) > before:
            before = max(ends)
            found.append(at)
    return found


def _crossings(hosting: Hosting, river: River, watched: Watched, feeder: Feeder, count: int) -> list[float]:
    found, wanted = [], river.wanted

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        hosting.until(lambda: time.monotonic() > until, PATIENCE_S, show=False)

    for _ in range(count):
        number = len(river.revisions) + 1
        river.want("two" if number % 2 == 0 else "three")
        hosting.until(lambda number=number: wanted.status(APP)["prepared"] == number, PATIENCE_S)  # type: ignore[misc]
        wait(AROUND_S)
        feeder.asked = number
        hosting.until(lambda number=number: wanted.status(APP)["revision"] == number, PATIENCE_S)  # type: ignore[misc]
        done_s = time.monotonic()
        wait(AROUND_S)
        found.append(pause_ms(commits_of(watched), feeder.at_s, done_s + AROUND_S))
    return found


def assert_each_once(path: Path, records: int, keys: int) -> None:
    with closing(sqlite3.connect(path)) as tables:
        held = {
            name: (rows, last)
            for name, rows, last in tables.execute(
                "SELECT sensor, count(*), max(count) FROM each_sum GROUP BY sensor"
            )
        }
    sent = Counter(f"s{number % keys}" for number in range(records))
    assert held == {name: (count, count) for name, count in sent.items()}


@pytest.mark.parametrize("keys", CHANGES)
def test_a_revision_in_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
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
        pauses = _crossings(hosting, river, watched, feeder, CHANGES[keys])
        feeder.stopping.set()
        feeder.join()
        hosting.through(APP, wait_s=PATIENCE_S)
        assert_each_once(river.wanted.tables(APP), feeder.records, keys)
    finally:
        feeder.stopping.set()
        hosting.close()
        river.wanted.close()
    report("a revision in place", keys, pauses, GOAL_MS)
