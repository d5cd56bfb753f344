"""Spark's Python workers killed with SIGKILL in the middle of a micro-batch, in a session of this process."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from geartrain_cloud.spark.compile import HOSTED
from tests.hosting.hosted import HostFolder, RunningHost
from tests.spark.faults.flows import INSTANCE, Gate, HeldLog, Row, assert_tables, held_flow, held_writer
from tests.spark.faults.hosts import want_held_flow
from tests.waiting import WAIT_S


class HeldRun:
    """`held_flow` on hosts of this process, one after another, and its log."""

    def __init__(self, spark: SparkSession, folder: Path, rows_max: int, gate: Gate | None = None) -> None:
        self._spark, self.folder = spark, HostFolder(folder)
        want_held_flow(self.folder, held_flow(gate), rows_max)
        self.log = HeldLog(held_writer(self.folder.log))
        self.tables = self.folder.tables(INSTANCE)

    def run(self) -> int:
        """Host it until all of the log is in its tables; how often its query was started again."""
        hosting = RunningHost(self._spark, self.folder)
        try:
            hosting.until(lambda: self.folder.is_through(INSTANCE) or self._state() == "out")
            assert self._state() != "out", self.folder.status(INSTANCE)
            group = hosting.host.groups.of((INSTANCE, 1))
            assert group is not None
            return len(group.query.restarts)
        finally:
            hosting.close()

    def _state(self) -> str:
        return str(self.folder.status(INSTANCE).get("state", ""))

    def assert_exact(self) -> None:
        """The tables hold each row once."""
        assert_tables(self.tables, self.log.records)


def micro_batches(tables: Path) -> int:
    """How many micro-batches of the flow its tables hold."""
    if not tables.exists():
        return 0
    with closing(sqlite3.connect(tables, timeout=WAIT_S)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = '_queries'").fetchone():
            return 0
        found = db.execute("SELECT batch_id FROM _queries WHERE query = ?", (HOSTED,)).fetchone()
    return 0 if found is None else int(found[0]) + 1


class Killed:
    """Kills whoever comes to a closed gate, once for each, and sees how long the tables stand still."""

    def __init__(self, gates: Path, tables: Path) -> None:
        self._gates, self._tables = gates, tables
        self.pids: list[int] = []
        self.waited_s: list[float] = []

    def follow(self, until: threading.Event) -> None:
        while not until.is_set():
            for place in sorted(self._gates.glob("*.pid")):
                self._kill(place, until)
            time.sleep(0.02)

    def _kill(self, place: Path, until: threading.Event) -> None:
        before, pid = micro_batches(self._tables), int(place.read_text())
        place.rename(place.with_suffix(".done"))
        place.with_suffix(".open").touch()
        os.kill(pid, signal.SIGKILL)
        began_s = time.monotonic()
        self.pids.append(pid)
        while micro_batches(self._tables) == before and not until.is_set():
            time.sleep(0.01)
        self.waited_s.append(time.monotonic() - began_s)


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in a thread meanwhile."""
    until = threading.Event()
    thread = threading.Thread(target=work, args=(until,))
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join()


def closed(log: HeldLog, name: str) -> None:
    """Add a record that finds the gate closed."""
    log.append_one(name, 77.0)


def workers_killed(
    spark: SparkSession, folder: Path, times: int
) -> tuple[Sequence[float], Path, Sequence[Row]]:
    """Kill the worker of a stage in `times` micro-batches; the seconds until each was in the tables, their
    file, and what the log held.
    """
    gates = folder / "gates"
    gates.mkdir(parents=True)
    held = HeldRun(spark, folder, rows_max=30, gate=Gate(gates))
    held.log.append(40)
    held.run()
    for number in range(times):
        closed(held.log, f"gate-{number}")
        held.log.append(40)  # so that no micro-batch has two of them
    held.log.end()
    killed = Killed(gates, held.tables)
    with beside(killed.follow):
        restarts = held.run()
    assert len(killed.waited_s) == times
    assert restarts == 0
    held.assert_exact()
    return killed.waited_s, held.tables, held.log.records
