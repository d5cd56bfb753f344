"""`python -m tests.spark.faults.play STORY FOLDER`: one fault of Spark, in a process of its own.

Prints one JSON line: how many rows plain Python gives (accepted), how many of them the tables hold
(delivered), how many are missing (lost) or too many (duplicated), and the seconds of each recovery.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.session import open_session
from tests.postgres_server import running_postgres
from tests.spark.faults.executors import executors_killed
from tests.spark.faults.flows import HeldLog, Row, columns, expected, held_writer
from tests.spark.faults.hosts import Hosts
from tests.spark.faults.kill_points import POINTS
from tests.spark.faults.stores import Stores, each_store_fails, server_restarts
from tests.spark.faults.stories import (
    ended,
    killed_at,
    lost_and_made_again,
    second_refused,
    segment_missing,
    torn_and_made_again,
)
from tests.spark.faults.workers import workers_killed

WORKERS_KILLED = 3

Told = tuple[list[float], Counter[Any], Sequence[Any]]
"""Seconds of recoveries, what there should be, and what there is."""


def _held(tables: Path, records: Sequence[Row]) -> tuple[Counter[Any], Sequence[Any]]:
    return Counter(expected(records)), columns(rows(tables, "each_sum", canonical=True))


def _with_hosts(story: Callable[[Hosts, HeldLog], float], folder: Path) -> Told:
    hosts = Hosts(folder)
    log = HeldLog(held_writer(hosts.wanted.log))
    try:
        taken_s = story(hosts, log)
    finally:
        hosts.end()
    return [taken_s], *_held(hosts.tables, log.records)


def _after_a_kill(story: Callable[[Hosts, HeldLog], float], point: str, hosts: Hosts, log: HeldLog) -> float:
    killed_at(hosts, log, point)
    return story(hosts, log)


def _with_executors(folder: Path) -> Told:
    taken_s, hosts, log = executors_killed(folder)
    return taken_s, *_held(hosts.tables, log.records)


def _with_session(story: Callable[[SparkSession, Path], Told], folder: Path) -> Told:
    session = open_session("local[2]", folder / "spark")
    try:
        return story(session, folder)
    finally:
        session.stop()


def _workers(session: SparkSession, folder: Path) -> Told:
    taken_s, tables, records = workers_killed(session, folder, WORKERS_KILLED)
    return list(taken_s), *_held(tables, records)


def _stores(story: Callable[[Stores], list[float]], session: SparkSession, folder: Path) -> Told:
    with running_postgres() as server:
        stores = Stores(session, folder, server, server.database("broken")).begun()
        taken_s = story(stores)
        own, held = stores.held()
        wanted = Counter((place, value) for place in ("own", "other") for value in stores.wanted())
        return taken_s, wanted, [("own", value) for value in own] + [("other", value) for value in held]


STORIES: dict[str, Callable[[Path], Told]] = {
    **{
        f"host killed, {point}": partial(_with_hosts, partial(_after_a_kill, ended, point))
        for point in POINTS
    },
    "Python workers killed": partial(_with_session, _workers),
    "executors of a cluster killed": _with_executors,
    "two hosts on one state folder": partial(_with_hosts, second_refused),
    "checkpoint lost": partial(_with_hosts, partial(_after_a_kill, lost_and_made_again, "in the sink")),
    "checkpoint torn": partial(_with_hosts, partial(_after_a_kill, torn_and_made_again, "after the sink")),
    "segment of the log missing": partial(_with_hosts, partial(_after_a_kill, segment_missing, "between")),
    "stores that fail before, within and after": partial(_with_session, partial(_stores, each_store_fails)),
    "PostgreSQL restarted in a transaction": partial(_with_session, partial(_stores, server_restarts)),
}


def main() -> int:
    """Play one; its assertions fail with a trace, which says what did not hold."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started is ended
    name, folder = sys.argv[1], Path(sys.argv[2])
    taken_s, wanted, found = STORIES[name](folder)
    held = Counter(found)
    delivered = (held & wanted).total()
    told = {
        "accepted": wanted.total(),
        "delivered": delivered,
        "lost": wanted.total() - delivered,
        "duplicated": held.total() - delivered,
    }
    print(json.dumps({"account": told, "recovery_s": taken_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
