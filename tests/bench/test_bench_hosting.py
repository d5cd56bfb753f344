"""Flows hosted in one query: from an entry in the log to the rows in each flow's table.

Six flows with a keyed task each, 200 records a second each, then the same with thirty idle flows beside, in
one run: p50 and p95. Then five such flows beside one that misbehaves: the longest that any of their entries
took. A feeder commits an entry of every flow at a time, twenty times a second, as ingest's groups do.
"""

from __future__ import annotations

import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.group import GroupSettings
from geartrain_cloud.hosting.offsets import positions_by_name
from geartrain_cloud.hosting.writer import Ran
from geartrain_cloud.log.reader import LogReader
from tests.bench.harness import SIZE, Work
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import EXIT, HANG, RAISE

pytestmark = pytest.mark.long

RATE, EVERY_S = 200, 0.05
PATIENCE_S = 300.0
ACTIVE = 6
IDLE = 30 if SIZE > 0.1 else 2
RUN_S = max(2.0, 30.0 * min(1.0, SIZE))
WARM_S = max(1.0, 8.0 * min(1.0, SIZE))
LOCKED_S = max(1.0, 8.0 * min(1.0, SIZE))
BACKLOG = max(1_000, round(100_000 * SIZE))
PAUSE_MS = 10_000.0
"""How long the others may wait for each guilty flow."""


class Feeder(threading.Thread):
    """Appends to the active flows' logs, and notes when each entry was there."""

    def __init__(self, wanted: Wanted, names: list[str]) -> None:
        super().__init__(daemon=True)
        self._wanted, self._names = wanted, names
        self.stopping = threading.Event()
        self.sent: dict[str, list[float]] = {name: [] for name in names}
        self.begins = {name: _newest(wanted, name) for name in names}

    def run(self) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            for name in self._names:
                self._wanted.logs[name].append(round(RATE * EVERY_S))
                self.sent[name].append(time.monotonic())
            due += EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))


class Watched:
    """Notes when each micro-batch was in the tables; it stands around the group's writer."""

    def __init__(self, hosting: Hosting) -> None:
        self.ran: list[tuple[float, Ran]] = []
        group = hosting.host.groups.shared
        inner = group.writer._write

        def write(frame: Any, batch_id: int) -> None:
            inner(frame, batch_id)
            self.ran.append((time.monotonic(), group.writer.last))

        group.writer._write = write  # type: ignore[method-assign]


def _newest(wanted: Wanted, name: str) -> int:
    return sum(LogReader(wanted.log).positions(name).values())


def _latencies(feeder: Feeder, watched: Watched, name: str, since: float) -> list[float]:
    """Seconds from each entry to its rows in the table."""
    took, done = [], feeder.begins[name]
    for at, ran in watched.ran:
        position = sum(positions_by_name(ran.offsets).get(f"{name}~1", {}).values())
        for number in range(done + 1, position + 1):
            index = number - feeder.begins[name] - 1
            if index < len(feeder.sent[name]) and feeder.sent[name][index] >= since:
                took.append(at - feeder.sent[name][index])
        done = max(done, position)
    return took


def _phase(
    hosting: Hosting, watched: Watched, names: list[str], trouble: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """trouble: what is brought about in the middle, in the place of `RUN_S` seconds of nothing."""
    feeder = Feeder(hosting.wanted, names)
    feeder.start()
    warm = time.monotonic() + WARM_S
    hosting.until(lambda: time.monotonic() > warm, PATIENCE_S, show=False)
    try:
        if trouble is None:
            end = time.monotonic() + RUN_S
            hosting.until(lambda: time.monotonic() > end, RUN_S + PATIENCE_S, show=False)
        else:
            trouble()
    finally:
        feeder.stopping.set()
        feeder.join()
    hosting.through(*names, wait_s=PATIENCE_S)
    return {name: _latencies(feeder, watched, name, warm) for name in names}


def _tell(what: str, found: Mapping[str, list[float]]) -> None:
    for at, label in ((49, "p50"), (94, "p95")):
        figures = {name: statistics.quantiles(took, n=100)[at] * 1_000 for name, took in found.items()}
        contenders = {name: lambda ms=ms: ms for name, ms in figures.items()}
        notes = [f"{sum(map(len, found.values()))} entries of {round(RATE * EVERY_S)} records"]
        Work(f"hosted flows, {what}, {label}", "ms", contenders, next(iter(figures)), notes=notes).run(1)


def test_hosted_flows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    names = [f"active{number}.1" for number in range(ACTIVE)]
    for number, name in enumerate(names):
        wanted.add(name, number).append(10)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        watched = Watched(hosting)
        hosting.through(*names, wait_s=PATIENCE_S)
        alone = _phase(hosting, watched, names)
        idle = [f"idle{number}.1" for number in range(IDLE)]
        for number, name in enumerate(idle):
            wanted.add(name, number % ACTIVE)
        wanted.write()
        hosting.until(lambda: len(hosting.host.groups.shared.version.flows) == ACTIVE + IDLE, PATIENCE_S)
        beside = _phase(hosting, watched, names)
        for name in names:
            wanted.logs[name].assert_tables(wanted.tables(name))
    finally:
        hosting.close()
        wanted.close()
    _tell("six of 200 records/s", alone)
    _tell(f"{IDLE} idle beside", beside)


def test_guilty_flows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    names = [f"good{number}.1" for number in range(ACTIVE - 1)]
    values = {"raises": RAISE} | ({"ends its worker": EXIT, "hangs": HANG} if SIZE > 0.01 else {})
    instances = {what: f"{what.replace(' ', '_')}.1" for what in [*values, "locked", "backlog"]}
    for number, name in enumerate([*names, *instances.values()]):
        wanted.add(name, number % ACTIVE).append(10)
    late = wanted.flows.pop(instances["backlog"])
    wanted.logs[instances["backlog"]].append(BACKLOG)
    wanted.write()
    hosting = Hosting(spark, wanted, hang_s=GroupSettings().hang_s)

    def misbehave(what: str) -> None:
        wanted.logs[instances[what]].append(10, [values[what]])
        hosting.until(lambda: wanted.status(instances[what])["state"] == "out", PATIENCE_S)

    def lock() -> None:
        tables = wanted.tables(instances["locked"])
        with closing(sqlite3.connect(tables, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            wanted.logs[instances["locked"]].append(10)
            until = time.monotonic() + LOCKED_S
            hosting.until(lambda: wanted.status(instances["locked"])["state"] == "held", PATIENCE_S)
            hosting.until(lambda: time.monotonic() > until, PATIENCE_S)
            other.execute("ROLLBACK")
        hosting.through(instances["locked"], wait_s=PATIENCE_S)

    def catch_up() -> None:
        wanted.flows[instances["backlog"]] = late
        wanted.write()
        hosting.through(instances["backlog"], wait_s=PATIENCE_S)

    try:
        watched = Watched(hosting)
        hosting.through(*names, wait_s=PATIENCE_S)
        phases = {"nothing": _phase(hosting, watched, names)}
        for what in values:
            phases[what] = _phase(hosting, watched, names, partial(misbehave, what))
        phases["locked"] = _phase(hosting, watched, names, lock)
        phases["backlog"] = _phase(hosting, watched, names, catch_up)
        for name in [*names, instances["locked"], instances["backlog"]]:
            wanted.logs[name].assert_tables(wanted.tables(name))
    finally:
        hosting.close()
        wanted.close()
    longest = {what: max(map(max, found.values())) * 1_000 for what, found in phases.items()}
    contenders = {what: lambda ms=ms: ms for what, ms in longest.items()} | {"asked for": lambda: PAUSE_MS}
    goals = {what: {"asked for": 1.0} for what in longest}
    hang_s = GroupSettings().hang_s
    notes = [
        f"a backlog of {BACKLOG:,} rows, a table locked for {LOCKED_S:g} s, a hang known after {hang_s:g} s"
    ]
    Work(
        "hosted flows, longest wait beside one that", "ms", contenders, "nothing", goals=goals, notes=notes
    ).run(1)
    _tell("beside a backlog", phases["backlog"])
