"""Faults of Spark's processes and files, each brought about on hosts that are processes of their own.

Each story returns when the tables hold each row once, as plain Python gives them, and says how long it took
from a fault's end until the tables had something again.
"""

from __future__ import annotations

import shutil
import time

from tests.spark.faults.flows import INSTANCE, HeldLog, assert_tables
from tests.spark.faults.hosts import Hosts
from tests.spark.faults.kill_points import POINT
from tests.waiting import WAIT_S

KILLED_ENTRY = "tests.spark.faults.kill_points"


def is_at(point: str, hosts: Hosts) -> bool:
    """Whether the files of Spark and the tables are as they must be where a host was killed at `point`."""
    offsets, commits, held = hosts.newest("offsets"), hosts.newest("commits"), hosts.held()[0]
    committed = hosts.counted(commits)
    return {
        "before the offset log": offsets == commits and held == committed,
        "after the offset log": offsets == commits + 1 and held == committed,
        "in the sink": offsets == commits + 1 and held == committed,
        "after the sink": offsets == commits + 1 and held == committed + 1,
        "between": offsets == commits and held == committed,
    }[point]


def killed_at(hosts: Hosts, log: HeldLog, point: str) -> float:
    """A life that reads more of the log and is killed at `point`, with records held and timers set; seconds
    from its start until its first micro-batch.
    """
    log.append(240)
    before = hosts.held()[0]
    hosts.start(entry=KILLED_ENTRY, **{POINT: point})
    taken_s = hosts.first_batch_s(before)
    hosts.until_killed(point)
    assert is_at(point, hosts), (point, hosts.newest("offsets"), hosts.newest("commits"), hosts.held())
    _, log_rows = hosts.held()
    sums = hosts.count("each_sum WHERE count > 0")
    assert 0 < sums < log_rows  # some are held, with their timers
    print(f"killed {point}: {log_rows} rows read, {log_rows - sums} held")
    return taken_s


def ended(hosts: Hosts, log: HeldLog) -> float:
    """The last life, which comes to the log's end; seconds from its start until its first micro-batch."""
    log.append(60)
    log.end()
    before = hosts.held()[0]
    hosts.start()
    taken_s = hosts.first_batch_s(before)
    hosts.stop()
    assert_tables(hosts.tables, log.records)
    return taken_s


def lost_and_made_again(hosts: Hosts, log: HeldLog) -> float:
    """All of Spark's files are lost: the next life makes the state again from the log."""
    shutil.rmtree(hosts.checkpoint)
    return ended(hosts, log)


def torn_and_made_again(hosts: Hosts, log: HeldLog) -> float:
    """The newest of Spark's offsets is empty, as a loss of power leaves it."""
    path = hosts.checkpoint / "offsets" / str(hosts.newest("offsets"))
    path.write_bytes(b"")
    return ended(hosts, log)


def segment_missing(hosts: Hosts, log: HeldLog) -> float:
    """One that was not read yet: the flow is put out, the segment named, and it comes back with that."""
    before = set(hosts.wanted.log.rglob("*.arrow"))
    log.append(240)
    segment = max(set(hosts.wanted.log.rglob("*.arrow")) - before)
    aside = segment.rename(hosts.folder / segment.name)
    process = hosts.start()
    hosts.until(lambda: segment.name in hosts.wanted.status(INSTANCE).get("why", ""))
    process.terminate()
    assert process.wait(WAIT_S) == 0, hosts.read_log()
    aside.rename(segment)
    hosts.wanted.flows[INSTANCE]["attempt"] = 2  # as gear resume has it
    hosts.wanted.write()
    return ended(hosts, log)


def second_refused(hosts: Hosts, log: HeldLog) -> float:
    """Two hosts on one state folder: the second ends, the first goes on."""
    log.append(240)
    hosts.start()
    hosts.until(lambda: hosts.held()[0] >= 0)
    hosts.refuse_another()
    began_s, before = time.monotonic(), hosts.held()[0]
    log.append(60)
    log.end()
    hosts.until(lambda: hosts.held()[0] > before)
    taken_s = time.monotonic() - began_s
    hosts.stop()
    assert_tables(hosts.tables, log.records)
    return taken_s
