"""Spark's driver and executors killed with SIGKILL at the worst moments: each row once, in order, as plain
Python gives them, with timers set and records held in Spark's state when the kill comes.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain_cloud.spark.driver import EXIT_REFUSED
from tests.spark.faults.cluster import WORKERS, Cluster
from tests.spark.faults.drivers import Drivers
from tests.spark.faults.flows import HeldLog, assert_tables, held_writer
from tests.spark.faults.kill_points import POINT, POINTS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

KILLED_ENTRY = "tests.spark.faults.kill_points"


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    started = Drivers(tmp_path)
    yield started
    started.close()


def is_at(point: str, drivers: Drivers) -> bool:
    """Whether the files of Spark and the tables are as they must be where a driver was killed at `point`."""
    offsets, commits, held = drivers.newest("offsets"), drivers.newest("commits"), drivers.held()[0]
    return {
        "before the offset log": offsets == commits == held,
        "after the offset log": offsets == commits + 1 == held + 1,
        "in the sink": offsets == commits + 1 == held + 1,
        "after the sink": offsets == commits + 1 == held,
        "between": offsets == commits == held,
    }[point]


def test_a_driver_killed_at_each_point_goes_on_exactly(drivers: Drivers) -> None:
    """Five lives are killed, each at another point; then the checkpoint is lost, and the sixth makes it again
    and ends by itself.
    """
    log = HeldLog(held_writer(drivers.folder / "log"))
    taken_s = []
    for point in POINTS:
        log.append(240)
        before = drivers.held()[0]
        drivers.start(entry=KILLED_ENTRY, **{POINT: point})
        taken_s.append(drivers.first_batch_s(before))
        assert drivers.end() == -9, drivers.said()
        assert is_at(point, drivers), (point, drivers.newest("offsets"), drivers.newest("commits"))
        _, _, log_rows = drivers.held()
        sums = drivers.count("each_sum WHERE count > 0")
        assert 0 < sums < log_rows  # some are held, with their timers
        print(f"killed {point}: {log_rows} rows read, {log_rows - sums} held")
    shutil.rmtree(drivers.checkpoint)
    drivers.start()
    assert drivers.end() == EXIT_REFUSED
    (said,) = drivers.said().splitlines()
    assert f"query 'keyed': its checkpoint {drivers.checkpoint} is missing" in said
    assert "make it again from the log with --restore" in said
    log.append(60)
    log.end()
    drivers.start("--restore")
    assert drivers.end() == 0, drivers.said()
    assert_tables(drivers.tables, log.records)
    print("from a driver's start until its first micro-batch:", *(f"{one:.1f} s" for one in taken_s))


EXECUTORS = """
[spark]
"spark.executor.memory" = "512m"
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.shuffle.partitions" = "2"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    started = Cluster(tmp_path / "cluster")
    started.start()
    yield started
    started.close()


def test_killed_executors_do_not_stop_the_query(cluster: Cluster, tmp_path: Path) -> None:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers."""
    drivers = Drivers(tmp_path, more=f'master = "{cluster.master}"\n{EXECUTORS}')
    log = HeldLog(held_writer(tmp_path / "log"))
    log.append(600)
    drivers.start(SPARK_LOCAL_IP="127.0.0.1")
    try:
        killed: list[int] = []
        for number in range(WORKERS):
            drivers.wait(lambda number=number: drivers.held()[0] >= 2 * number)  # type: ignore[misc]
            drivers.wait(lambda: drivers.newest("offsets") > drivers.newest("commits"))
            fresh = [pid for pid in cluster.executors() if pid not in killed]
            os.kill(fresh[number % len(fresh)], signal.SIGKILL)
            killed.append(fresh[number % len(fresh)])
        log.append(60)
        log.end()
        assert drivers.end() == 0, drivers.said()
    finally:
        drivers.close()
    assert_tables(drivers.tables, log.records)
