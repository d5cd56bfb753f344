"""Faults of Spark's processes and files, each brought about on drivers that are processes of their own.

Each story returns when the tables hold each row once, as plain Python gives them, and says how long it took
from a fault's end until the tables had something again.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from geartrain_cloud.spark.driver import EXIT_FAILED, EXIT_REFUSED
from tests.spark.faults.cluster import WORKERS, Cluster
from tests.spark.faults.drivers import Drivers
from tests.spark.faults.flows import HeldLog, assert_tables, held_writer
from tests.spark.faults.kill_points import POINT

KILLED_ENTRY = "tests.spark.faults.kill_points"

EXECUTORS = """
[spark]
"spark.executor.memory" = "512m"
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.shuffle.partitions" = "2"
"""


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


def killed_at(drivers: Drivers, log: HeldLog, point: str) -> float:
    """A life that reads more of the log and is killed at `point`, with records held and timers set; seconds
    from its start until its first micro-batch.
    """
    log.append(240)
    before = drivers.held()[0]
    drivers.start(entry=KILLED_ENTRY, **{POINT: point})
    taken_s = drivers.first_batch_s(before)
    assert drivers.end() == -9, drivers.said()
    assert is_at(point, drivers), (point, drivers.newest("offsets"), drivers.newest("commits"))
    _, _, log_rows = drivers.held()
    sums = drivers.count("each_sum WHERE count > 0")
    assert 0 < sums < log_rows  # some are held, with their timers
    print(f"killed {point}: {log_rows} rows read, {log_rows - sums} held")
    return taken_s


def ended(drivers: Drivers, log: HeldLog, *options: str) -> float:
    """The last life, which ends by itself; seconds from its start until its first micro-batch."""
    log.append(60)
    log.end()
    before = drivers.held()[0]
    drivers.start(*options)
    taken_s = drivers.first_batch_s(before)
    assert drivers.end() == 0, drivers.said()
    assert_tables(drivers.tables, log.records)
    return taken_s


def refused(drivers: Drivers, *words: str, code: int = EXIT_REFUSED) -> None:
    """A life that ends with `code` and one sentence, in which these words are."""
    drivers.start()
    assert drivers.end() == code, drivers.said()
    said = [line for line in drivers.said().splitlines() if line.startswith("driver: ")]
    assert len(said) == 1, said
    for one in words:
        assert one in said[0], said[0]


def lost_and_made_again(drivers: Drivers, log: HeldLog) -> float:
    """The checkpoint of a run is lost: the next life is refused, and one with --restore makes it again."""
    shutil.rmtree(drivers.checkpoint)
    missing = f"query 'keyed': its checkpoint {drivers.checkpoint} is missing"
    refused(drivers, missing, "make it again from the log with --restore")
    return ended(drivers, log, "--restore")


def torn_and_made_again(drivers: Drivers, log: HeldLog) -> float:
    """The newest of Spark's offsets is empty, as a loss of power leaves it."""
    path = drivers.checkpoint / "spark" / "offsets" / str(drivers.newest("offsets"))
    path.write_bytes(b"")
    refused(drivers, f"its checkpoint is not whole, {path}: it is empty")
    return ended(drivers, log, "--restore")


def segment_missing(drivers: Drivers, log: HeldLog) -> float:
    """One that was not read yet: its positions are named at every start, until it is brought back."""
    before = set((drivers.folder / "log").rglob("*.arrow"))
    log.append(240)
    segment = max(set((drivers.folder / "log").rglob("*.arrow")) - before)
    aside = segment.rename(drivers.folder / segment.name)
    refused(drivers, segment.name, "position", code=EXIT_FAILED)
    refused(drivers, segment.name, "position", code=EXIT_FAILED)
    aside.rename(segment)
    return ended(drivers, log)


def second_refused(drivers: Drivers, log: HeldLog) -> float:
    """Two drivers on one state folder: the second ends, the first goes on."""
    log.append(240)
    first = drivers.start()
    drivers.wait(lambda: drivers.held()[0] >= 0)
    refused(drivers, f"another driver (process {first.pid}) runs on")
    began_s, before = time.monotonic(), drivers.held()[0]
    log.append(60)
    log.end()
    while drivers.held()[0] <= before and first.poll() is None:
        time.sleep(0.02)
    taken_s = time.monotonic() - began_s
    drivers.started.append(drivers.started.pop(0))
    assert drivers.end() == 0
    assert_tables(drivers.tables, log.records)
    return taken_s


def executors_killed(folder: Path) -> tuple[list[float], Drivers, HeldLog]:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers; the seconds from
    each kill until a micro-batch was written.
    """
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster")
    cluster.start()
    try:
        drivers = Drivers(folder, more=f'master = "{cluster.master}"\n{EXECUTORS}')
        log = HeldLog(held_writer(folder / "log"))
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
