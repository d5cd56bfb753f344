"""A platform whose devices get sources by an update while they send, and lose some by another; with Spark.

One is for all devices, one for some, and one for the platform's own, which has nothing else of the app. The
agent of one device is killed as it goes over. The tables are compared with what plain Python makes of the
lines of the files.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, until
from tests.proofs.test_platform_device_revisions import BASE, DEVICES, World, beside
from tests.supervisor.test_up import platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

LIVE = BASE.replace(
    "bounded = replayable = in_order = True", "bounded = False\n    replayable = in_order = True"
)
MORE = (
    'doors = flow.source("doors", Growing(path="DOORS"), out=Reading)\n'
    'doors.filter(lambda r: r.value > 50, name="wide").sink("w", Table("wide"))\n'
    'doors.key_by("sensor").process("ever", Sums(), out=Sum).sink("e", Table("ever"))\n'
)
# One for a single device, and one that stands in the data centre.
SOME = (
    'bells = flow.source("bells", Growing(path="DOORS"), out=Reading, devices="d1")\n'
    'bells.filter(lambda r: r.value > 50, name="rung").sink("r", Table("rung"))\n'
)
CLOUD = (
    'tides = flow.source("tides", Growing(path="DOORS"), out=Reading).at("cloud")\n'
    'tides.filter(lambda r: r.value > 50, name="high_tides").sink("t", Table("tides"))\n'
)


def sums(records: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
    numbers, totals, found = Counter[str](), Counter[str](), []
    for sensor, value in records:
        numbers[sensor] += 1
        totals[sensor] += value
        found.append((sensor, numbers[sensor], totals[sensor]))
    return found


def rows(client: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, client.get(f"/apps/meadow/tables/{table}?limit=10000")["rows"]))


@pytest.mark.long
def test_devices_get_a_source_more_and_read_it_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, doors = World(tmp_path), tmp_path / "doors.txt"
    opened = [(f"door{number % 3}", 7 * number % 100) for number in range(60)]
    doors.write_text("".join(f"{door} {value}\n" for door, value in opened))
    world.install(LIVE)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(world.project / "src"))
    state, project = world.state, str(world.project)
    state.mkdir()
    (state / "platform.toml").write_text("[fleet]\nidle_after_s = 600\n")  # nobody is silent under load
    with platform(state):
        client = client_of(state)
        world.submit("sums")
        world.grow(100)
        world.install(LIVE + (MORE + SOME + CLOUD).replace("DOORS", str(doors)))
        said = " ".join(gear(state, "update", "meadow", project, "--dry-run").split())
        assert "doors attached" in said
        with world.growing():
            deaths = beside(lambda: world.kill_agent("d1", 2))
            gear(state, "update", "meadow", project, "--timeout", "10m")
            for death in deaths:
                death.join(WAIT_S)
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone over")
        world.grow(100)
        each = sorted(row for name in DEVICES for row in sums(world.records[name]))
        until(lambda: rows(client, "each") == each, "all readings are in their table")
        wide = sorted(2 * [one for one in opened if one[1] > 50])  # both devices read the file
        until(lambda: rows(client, "wide") == wide, "all doors are in their table")
        for table in ("rung", "tides"):  # one device alone reads it
            once = sorted(one for one in opened if one[1] > 50)
            until(lambda: rows(client, table) == once, f"all are in table {table}")  # noqa: B023
        # In order of time, so that the last record waits for one behind it; both devices give equal ones.
        ever = sorted(sums([one for one in opened[:-1] for _ in DEVICES]))
        until(lambda: rows(client, "ever") == ever, "all doors were counted")
        sources = {one["source"]: one["clock_us"] for one in client.get("/apps/meadow")["clocks"]}
        assert sources.keys() == {"readings", "doors", "bells", "tides"}
        world.install(LIVE + CLOUD.replace("DOORS", str(doors)))
        with world.growing():
            gear(state, "update", "meadow", project, "--timeout", "10m")
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone over once more")
        world.grow(100)
        each = sorted(row for name in DEVICES for row in sums(world.records[name]))
        until(lambda: rows(client, "each") == each, "all readings are in their table, without the doors")
        assert rows(client, "wide") == wide
        assert {one["source"] for one in client.get("/apps/meadow")["clocks"]} == {"readings", "tides"}
        with doors.open("a") as more:
            more.write("door9 99\n")
        until(lambda: rows(client, "tides") == sorted([*once, ("door9", 99)]), "the last is in its table")
        world.install(LIVE + MORE.replace("DOORS", str(doors)))
        with pytest.raises(AssertionError, match="source doors has gone from the app, and does not come"):
            gear(state, "update", "meadow", project, "--dry-run")
