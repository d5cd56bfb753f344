"""The keys of a hosted flow are dealt over other slots: each micro-batch of that is run twice, and the host
is killed at each step.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.offsets import PLAN
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.whole import numbers
from tests.hosting.host_process import HostProcess
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import MillLog
from tests.hosting.test_scaling import APP, assert_tables, expected, river

"""For a step: each has the host start anew."""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def forget_last_commit(group: Group) -> None:
    """Make it as if the host had been killed before it; the query is closed."""
    commits = group._checkpoint.location / "commits"
    last = numbers(commits)[-1]
    for path in commits.glob(f"*{last}*"):
        if path.name.strip(".").removesuffix(".crc") == str(last):
            path.unlink()


def has_committed(group: Group, version: int) -> bool:
    return group.committed().get(PLAN) == version


class Stops:
    """Has a group go no further on its way to other slots than it is told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        go_on = Group.scale

        def scale(group: Group, *given: Any) -> bool:
            before = group.version.number
            if self.steps == 0:
                return False
            done = go_on(group, *given)
            self.steps -= group.version.number > before
            return done

        patch.setattr(Group, "scale", scale)


def test_each_step_to_other_slots_may_run_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, log = river(tmp_path, monkeypatch)
    log.append(170)
    stops = Stops(monkeypatch)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        assert wanted.status(APP)["slots"] == 2
        wanted.flows[APP]["slots"] = 5
        wanted.write()
        log.append(30)
        for _ in range(2):  # what is to be written, and then what is to be taken
            stops.steps = 1
            hosting.until(lambda: stops.steps == 0)
            group = hosting.host.groups.shared
            hosting.until(partial(has_committed, group, group.version.number))
            hosting.close()
            forget_last_commit(group)
            log.append(40)
            hosting = Hosting(spark, wanted)
        hosting.through(APP)
        said = wanted.status(APP)
        assert (said["slots"], said["slots_wanted"], said["generation"]) == (5, 0, 2)
        assert_tables_so_far(wanted, log)
        stops.steps = 100
        wanted.flows[APP]["slots"] = 1
        wanted.write()
        log.append(60)
        hosting.until(lambda: wanted.status(APP).get("slots") == 1)
        log.append(60)
        log.writer.end()
        hosting.through(APP)
        assert_tables(wanted, log)
    finally:
        hosting.close()
        wanted.close()


def assert_tables_so_far(wanted: Wanted, log: MillLog) -> None:
    """Of rows that wait for nothing."""
    found = [tuple(row.values()) for row in rows(wanted.tables(APP), "each_sum")]
    assert sorted(found) == sorted(expected(log)["each_sum"])


@pytest.mark.long
def test_kill_9_at_each_step_to_other_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, log = river(tmp_path, monkeypatch)
    process = HostProcess(wanted)
    versions, flows = (wanted.state / "groups" / "all" / name for name in ("versions", "flows"))
    try:
        process.start()
        log.append(300)
        process.until(lambda: wanted.is_through(APP))
        steps = (
            lambda: names(versions, '"leaves_for":5'),
            lambda: any(flows.glob("*/moving/*")),
            lambda: names(versions, '"comes_from":"river'),
            lambda: wanted.status(APP).get("slots") == 5,
        )
        wanted.flows[APP]["slots"] = 5
        wanted.write()
        for is_there in steps:
            log.append(50)
            process.until(is_there)
            process.started[-1].kill()
            process.started[-1].wait()
            process.start()
        wanted.flows[APP]["slots"] = 2
        wanted.write()
        process.until(lambda: wanted.status(APP).get("slots") == 2)
        log.append(50)
        log.writer.end()
        process.until(lambda: wanted.is_through(APP))
        assert_tables(wanted, log)
    finally:
        process.end()
        wanted.close()


def names(versions: Path, what: str) -> bool:
    """Whether any version of the plan says `what`."""
    found = False
    for path in versions.glob("*.json"):
        try:
            found |= what in path.read_text()
        except FileNotFoundError:  # forgotten meanwhile
            continue
    return found
