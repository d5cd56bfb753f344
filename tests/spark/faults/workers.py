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

from geartrain_cloud.spark.compile import KEYED
from tests.spark.cloud import Cloud
from tests.spark.faults.flows import Gate, HeldLog, Row, assert_tables, held_flow


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
        before, pid = self._written(), int(place.read_text())
        place.rename(place.with_suffix(".done"))
        place.with_suffix(".open").touch()
        os.kill(pid, signal.SIGKILL)
        began_s = time.monotonic()
        self.pids.append(pid)
        while self._written() == before and not until.is_set():
            time.sleep(0.01)
        self.waited_s.append(time.monotonic() - began_s)

    def _written(self) -> int:
        with closing(sqlite3.connect(self._tables, timeout=60)) as db:
            found = db.execute("SELECT batch_id FROM _queries WHERE query = ?", (KEYED,)).fetchone()
        return -1 if found is None else int(found[0])


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
    cloud = Cloud(spark, folder, rows_max=30, flow=held_flow(Gate(gates)))
    log = HeldLog(cloud.writer)
    log.append(40)
    cloud.run([KEYED])
    for number in range(times):
        closed(log, f"gate-{number}")
        log.append(40)  # so that no micro-batch has two of them
    log.end()
    killed = Killed(gates, cloud.tables_file)
    with beside(killed.follow):
        ran = cloud.run([KEYED])[KEYED]
    assert len(killed.waited_s) == times
    assert ran.restarts == 0
    assert_tables(cloud.tables_file, log.records)
    return killed.waited_s, cloud.tables_file, log.records
