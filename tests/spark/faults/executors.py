"""Executors of a cluster killed with SIGKILL, each in the middle of a micro-batch of the driver."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.spark.faults.cluster import WORKERS, Cluster
from tests.spark.faults.drivers import Drivers
from tests.spark.faults.flows import DRIVEN, HeldLog, assert_tables, held_writer

EXECUTORS = """
[spark]
"spark.executor.memory" = "512m"
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.shuffle.partitions" = "2"
"""


def executors_killed(folder: Path) -> tuple[list[float], Drivers, HeldLog]:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers; the seconds from
    each kill until a micro-batch was written.
    """
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster")
    cluster.start()
    try:
        drivers = Drivers(folder, more=f'master = "{cluster.master}"\n{EXECUTORS}')
        log = HeldLog(held_writer(folder / "log", DRIVEN))
        log.append(600)
        drivers.start(SPARK_LOCAL_IP="127.0.0.1")
        try:
            taken_s = [_executor_killed(drivers, cluster, number) for number in range(WORKERS)]
            log.append(60)
            log.end()
            assert drivers.end() == 0, drivers.said()
        finally:
            drivers.close()
    finally:
        cluster.close()
    assert_tables(drivers.tables, log.records)
    return taken_s, drivers, log


def _executor_killed(drivers: Drivers, cluster: Cluster, number: int) -> float:
    drivers.wait(lambda: drivers.held()[0] >= 2 * number)
    drivers.wait(lambda: drivers.newest("offsets") > drivers.newest("commits"))
    found = cluster.executors()
    before, began_s = drivers.held()[0], time.monotonic()
    os.kill(found[number % len(found)], signal.SIGKILL)
    drivers.wait(lambda: drivers.held()[0] > before)
    return time.monotonic() - began_s
