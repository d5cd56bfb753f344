"""A whole platform whose records get another type while one device is away from control and sends the former
one; with Spark.

The tables are compared with what plain Python makes of the lines of the files. A line of the former type that
cannot be upgraded is a dead letter.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.reader import LogReader
from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, until
from tests.proofs.test_platform_device_revisions import NAME, World
from tests.proofs.test_platform_revisions import FLOW
from tests.supervisor.test_up import pids, platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SOURCE = FLOW[: FLOW.index("class Sums")]
STEPS = (
    'flow = Flow("meadow")\n'
    'readings = flow.source("readings", Growing(), out=Reading)\n'
    'readings.sink("r", Table("readings"))\n'
    'readings.filter(lambda one: True, name="all").sink("a", Table("all"))\n'
)
LIVE = SOURCE.replace("bounded = replayable", "bounded = False\n    replayable")
FIRST = LIVE + STEPS
LATER = """
def made(former):
    if former.value % 25 == 13:
        raise ValueError("thirteen")
    return Reading(former.sensor, former.value, 10 * former.value)


class Former(Record):
    sensor: str
    value: int


class Reading(Record):
    sensor: str
    value: int
    tenths: int = 0
    upgrade = {Former: made}


class Sum("""
SECOND = (
    (LIVE + STEPS)
    .replace("class Reading(Record):\n    sensor: str\n    value: int\n\n\nclass Sum(", LATER.lstrip())
    .replace("[Reading(sensor, int(value))", "[Reading(sensor, int(value), 10 * int(value))")
)
GIVEN_UP = SECOND.replace("    upgrade = {Former: made}\n", "")


def rows(client: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, client.get(f"/apps/meadow/tables/{table}?limit=10000")["rows"]))


def holds(client: Any, table: str, wanted: list[tuple[Any, ...]]) -> bool:
    return rows(client, table) == wanted


class Logged:
    """The rows of the log, sensor and value of each. before: those that the first revision has run; former:
    the others of the former type; later: those of the later one.
    """

    def __init__(self, world: World) -> None:
        log = LogReader(world.places.log)
        self.before: list[tuple[str, int]] = []
        self.former: list[tuple[str, int]] = []
        self.later: list[tuple[str, int]] = []
        (key,) = log.keys()
        boundary = log.boundary(NAME, 2)[key]
        for entry in log.entries(NAME, key, 0, log.positions(NAME)[key], {"readings"}):
            if entry.count:
                table = log.table(entry).to_pydict()
                is_former = "tenths" not in table
                assert is_former or entry.number > boundary
                kept = (
                    self.later if not is_former else self.former if entry.number > boundary else self.before
                )
                kept += zip(table["sensor"], table["value"], strict=True)

    def sent(self) -> list[tuple[str, int]]:
        """All of them."""
        return sorted(self.before + self.former + self.later)

    def letters(self, *, gives_up: bool) -> list[tuple[str, int]]:
        """What is a dead letter."""
        return sorted(row for row in self.former if gives_up or row[1] % 25 == 13)

    def tables(self, *, gives_up: bool) -> list[tuple[Any, ...]]:
        """What is in the tables."""
        read = [*self.later, *(one for one in self.former if not gives_up and one[1] % 25 != 13)]
        upgraded = [(sensor, value, 10 * value) for sensor, value in read]
        return sorted([*upgraded, *((sensor, value, 0) for sensor, value in self.before)])


@pytest.mark.long
@pytest.mark.parametrize("gives_up", [False, True])
def test_a_device_that_has_not_heard_of_the_update_sends_the_former_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    world, second = World(tmp_path), GIVEN_UP if gives_up else SECOND
    assert second.count("Former") == 2 - gives_up
    options = ["--dead-letter-old"] if gives_up else []
    world.install(FIRST)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(world.project / "src"))
    state, project = world.state, str(world.project)
    state.mkdir()
    (state / "platform.toml").write_text("[fleet]\nidle_after_s = 600\n")  # nobody is silent under load
    with platform(state):
        client = client_of(state)
        world.submit("cloud")
        world.grow(60)
        until(lambda: len(rows(client, "all")) == 120, "all of the first lines are in their table")
        world.install(second)
        said = " ".join(gear(state, "update", "meadow", project, "--dry-run", *options).split())
        what = "records" if gives_up else "rows"
        assert f"channel readings: its records had no field tenths, now have one; {what} that d1, d2" in said
        away = until(lambda: pids(state).get("device d2"), "d2")
        os.kill(away, signal.SIGSTOP)  # it hears of nothing; its app goes on to send
        gear(state, "update", "meadow", project, "--timeout", "10m", *options)
        until(lambda: client.get("/apps/meadow")["crossing"]["devices"] == ["d2"], "d1 has gone over")
        world.grow(60)
        until(lambda: len(Logged(world).former) >= 60, "d2 has sent records of the former type")
        os.kill(away, signal.SIGCONT)
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone over")
        world.grow(40)
        sent = sorted(row for records in world.records.values() for row in records)
        until(lambda: Logged(world).sent() == sent, "all is in the log")
        wanted = Logged(world).tables(gives_up=gives_up)
        for table in ("all", "readings"):
            until(partial(holds, client, table, wanted), f"all is in {table}")
        letters = Logged(world).letters(gives_up=gives_up)
        assert letters
        until(
            lambda: len(rows(client, "dead_letters")) >= len(letters), "all dead letters are in their table"
        )
        refused = rows(client, "dead_letters")
        raw = [json.loads(bytes.fromhex(row[2])) for row in refused]
        assert sorted((one["sensor"], one["value"]) for one in raw) == letters
        why = (
            "records of its type were given up by an update with --dead-letter-old: Reading came from a "
            "device that had not gone over"
            if gives_up
            else "the record cannot be upgraded to Reading: ValueError: thirteen"
        )
        assert {row[:2] for row in refused} == {("readings", why)}
