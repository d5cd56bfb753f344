"""A whole platform whose app goes over to another revision and back while its device sends; with Spark.

The tables are compared with what plain Python makes of the same records, by the boundaries in the log.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, client_of
from tests.proofs.test_platform import gear, until, until_ended
from tests.supervisor.test_up import platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PROJECT = '[project]\nname = "meadow"\n[tool.geartrain]\nflow = "meadow.flow:flow"\n'
FLOW = """
from pathlib import Path

from geartrain import Context, Flow, Record, Source, State, Table, Task
from geartrain.declarations.options import FilePath
from geartrain.source import Batch


class Reading(Record):
    sensor: str
    value: int


class Sum(Record):
    sensor: str
    number: int
    total: int


class Held(State):
    number: int = 0
    total: int = 0


class Lines:
    out_of_orderness_us = 0

    def __init__(self, name, path):
        self.name, self.path = name, path

    async def read(self, position, limit):
        lines = self.path.read_text().split("\\n")[position:-1][:limit]
        rows = [line.split() for line in lines if line != "end"]
        numbers = [position + n for n in range(len(rows))]
        return Batch(
            [Reading(sensor, int(value)) for sensor, value in rows],
            [1_000_000 * (number + 1) for number in numbers],
            numbers,
            position + len(rows),
            ended="end" in lines,
        )

    async def close(self):
        pass


class Growing(Source[Reading]):
    \"\"\"A file that grows until a line says that it has ended.\"\"\"

    bounded = replayable = in_order = True
    path: FilePath = ""

    def open(self, device, step, out):
        return [Lines(f"{device}/{step}", Path(self.path))]


class Sums(Task[Reading, Sum]):
    state = Held

    def on_next(self, reading: Reading, ctx: Context[Sum, Held]) -> None:
        ctx.state.number += 1
        ctx.state.total += FACTOR * reading.value
        ctx.emit(Sum(reading.sensor, ctx.state.number, ctx.state.total))


class Counts(Task[Reading, Sum]):
    state = Held

    def on_next(self, reading: Reading, ctx: Context[Sum, Held]) -> None:
        ctx.state.number += 1
        ctx.emit(Sum(reading.sensor, ctx.state.number, 0))


flow = Flow("meadow")
readings = flow.source("readings", Growing(), out=Reading, partitioned_by="sensor")
keyed = readings.key_by("sensor", name="by_sensor")
keyed.process("sums", Sums(), out=Sum).sink("each", Table("each", key=("sensor", "number")))
"""
FIRST = (
    FLOW.replace("FACTOR", "1")
    + 'readings.filter(lambda r: r.value > 50, name="high").sink("w", Table("warm"))\n'
)
SECOND = (
    FLOW.replace("FACTOR", "10")
    + 'keyed.process("counts", Counts(), out=Sum).sink("c", Table("counts", key=("sensor", "number")))\n'
)


class World:
    """A platform with one app and the file that its device reads."""

    def __init__(self, folder: Path) -> None:
        self.state, self.file, self.project = folder / "state", folder / "readings.txt", folder / "project"
        self.records: list[tuple[str, int]] = []
        self.chance = random.Random(7)
        self.file.write_text("")

    def install(self, flow: str) -> None:
        """Have the project, which the device imports too, hold this flow."""
        package = self.project / "src" / "meadow"
        package.mkdir(parents=True, exist_ok=True)
        (self.project / "pyproject.toml").write_text(PROJECT)
        (package / "__init__.py").write_text("")
        (package / "flow.py").write_text(flow)

    def grow(self, count: int) -> None:
        """More lines in the file of the device."""
        more = [(self.chance.choice("abcd"), self.chance.randrange(100)) for _ in range(count)]
        self.records += more
        with self.file.open("a") as file:
            file.write("".join(f"{sensor} {value}\n" for sensor, value in more))

    def until_in_tables(self, client: Client) -> None:
        until(lambda: rows_of(client, "each") == len(self.records), f"{len(self.records)} rows")

    def boundaries(self) -> list[int]:
        """How many records there are before each revision, by the log."""
        log, found = LogReader(PlatformPlaces(self.state).log), [0]
        for revision in (2, 3):
            places = log.boundary("meadow.1", revision)
            assert places
            counts = [log.counts("meadow.1", key, 0, place) for key, place in places.items()]
            found.append(sum(one.get("readings", 0) for one in counts))
        return [*found, len(self.records)]


def rows_of(client: Client, table: str) -> int:
    found = {one["name"]: one["rows"] for one in client.get("/apps/meadow/tables")["items"]}
    return int(found.get(table, 0))


def expected(records: list[tuple[str, int]], ends: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """What the tables are to hold; ends: the numbers of records at which revisions begin."""
    tables = defaultdict[str, list[tuple[Any, ...]]](list)
    numbers, totals, since = Counter[str](), Counter[str](), Counter[str]()
    for at, (sensor, value) in enumerate(records):
        revision = sum(at >= end for end in ends[:-1])
        numbers[sensor] += 1
        totals[sensor] += (10 if revision == 2 else 1) * value
        tables["each"].append((sensor, numbers[sensor], totals[sensor]))
        if revision == 2:
            since[sensor] += 1
            tables["counts"].append((sensor, since[sensor], 0))
        elif value > 50:
            tables["warm"].append((sensor, value))
    return tables


def test_an_app_goes_over_and_back_while_its_device_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.install(FIRST)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(world.project / "src"))
    state, project = world.state, str(world.project)
    with platform(state):
        client = client_of(state)
        new = [sys.executable, "-m", "geartrain_client.cli", "key", "new", "--name", "alice"]
        subprocess.run(new, check=True, capture_output=True, timeout=WAIT_S)
        gear(state, "device", "add", "d1", "--local")
        path = f"readings.path={world.file}"
        gear(
            state, "submit", project, "--name", "meadow", "--cut", "cloud", "--set", path, "--timeout", "10m"
        )
        world.grow(200)
        world.until_in_tables(client)
        world.install(SECOND)
        world.grow(100)
        said = " ".join(gear(state, "update", "meadow", project, "--dry-run").split())
        for words in ("counts attached", "high removed", "sums replaced kept", "table warm: stays as it is"):
            assert words in said
        gear(state, "update", "meadow", project, "--timeout", "10m")
        world.grow(150)
        world.until_in_tables(client)
        world.install(FIRST)
        world.grow(80)
        gear(state, "rollback", "meadow", "--timeout", "10m")
        listed = json.loads(gear(state, "revisions", "meadow", "--json"))
        assert [(one["number"], one["state"]) for one in listed] == [
            (3, "in force"),
            (2, "former"),
            (1, "former"),
        ]
        world.grow(120)
        with world.file.open("a") as file:
            file.write("end\n")
        until_ended(client, "meadow")
        ends = world.boundaries()
        assert 0 < ends[1] < ends[2] < ends[3]
        for table, wanted in expected(world.records, ends).items():
            page = client.get(f"/apps/meadow/tables/{table}?limit=10000")
            assert sorted(map(tuple, page["rows"])) == sorted(wanted), table
            assert wanted
