"""Executors of a cluster killed with SIGKILL, each in the middle of a micro-batch of the host."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.spark.faults.cluster import WORKERS, Cluster
from tests.spark.faults.flows import HeldLog, assert_tables, held_writer
from tests.spark.faults.hosts import Hosts

PLATFORM = """
[spark]
master = "{master}"

[spark.settings]
"spark.executor.memory" = "512m"
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.shuffle.partitions" = "2"
"""


def executors_killed(folder: Path) -> tuple[list[float], Hosts, HeldLog]:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers; the seconds from
    each kill until a micro-batch was written.
    """
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster")
    cluster.start()
    try:
        hosts = Hosts(folder)
        (folder / "platform.toml").write_text(PLATFORM.format(master=cluster.master))
        log = HeldLog(held_writer(hosts.wanted.log))
        log.append(600)
        hosts.start(SPARK_LOCAL_IP="127.0.0.1")
        try:
            taken_s = [_executor_killed(hosts, cluster, number) for number in range(WORKERS)]
            log.append(60)
            log.end()
            hosts.stop()
        finally:
            hosts.end()
    finally:
        cluster.close()
    assert_tables(hosts.tables, log.records)
    return taken_s, hosts, log


def _executor_killed(hosts: Hosts, cluster: Cluster, number: int) -> float:
    hosts.until(lambda: hosts.held()[0] >= 2 * number)
    hosts.until(lambda: hosts.newest("offsets") > hosts.newest("commits"))
    found = cluster.executors()
    before, began_s = hosts.held()[0], time.monotonic()
    os.kill(found[number % len(found)], signal.SIGKILL)
    hosts.until(lambda: hosts.held()[0] > before)
    return time.monotonic() - began_s
