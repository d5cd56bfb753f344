"""A whole platform whose devices get other steps and get the former ones back while they send; with Spark.

Agents and ingest are killed as devices go over. The tables are compared with what plain Python makes of the
same records, given the place in the log at which each device has gone over.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.entry_reasons import number_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.ports import EntryKind
from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, until, until_ended
from tests.proofs.test_platform_revisions import FLOW, PROJECT
from tests.supervisor.test_up import is_alive, pids, platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

BASE = FLOW.replace("state = Held\n", "state = Held\n    factor: int = 1\n", 1).replace(
    "FACTOR", "self.factor"
)
FIRST = BASE + 'readings.filter(lambda r: r.value > 50, name="high").sink("w", Table("warm"))\n'
SECOND = (
    BASE.replace("Sums(), out", "Sums(factor=10), out")
    + 'keyed.process("counts", Counts(), out=Sum).sink("c", Table("counts", key=("sensor", "number")))\n'
)
DEVICES = ("d1", "d2")
NAME = "meadow.1"


@dataclass
class Gone:
    """What the log has of one device. crossed: how many records it had sent before each crossing; warm: how
    many high ones before the second revision; counted: how many that only the second one reads.
    """

    crossed: list[int] = field(default_factory=list)
    warm: int = 0
    counted: int = 0


class World:
    """A platform, its project, and the file that each device reads."""

    def __init__(self, folder: Path) -> None:
        self.state, self.project, self.chance = folder / "state", folder / "project", random.Random(5)
        self.files = {name: folder / f"{name}.txt" for name in DEVICES}
        self.records: dict[str, list[tuple[str, int]]] = {name: [] for name in DEVICES}
        for file in self.files.values():
            file.write_text("")
        self.places = PlatformPlaces(self.state)

    def install(self, flow: str) -> None:
        """Have the project, which the devices import too, hold this flow."""
        package = self.project / "src" / "meadow"
        package.mkdir(parents=True, exist_ok=True)
        (self.project / "pyproject.toml").write_text(PROJECT)
        (package / "__init__.py").write_text("")
        (package / "flow.py").write_text(flow)

    def submit(self, cut: str) -> None:
        """Make an author's keys and the devices, and submit the project with this cut."""
        new = [sys.executable, "-m", "geartrain_client.cli", "key", "new", "--name", "alice"]
        subprocess.run(new, check=True, capture_output=True, timeout=WAIT_S)
        for name in DEVICES:
            gear(self.state, "device", "add", name, "--local")
        own = [f"--device-set={name}:readings.path={path}" for name, path in self.files.items()]
        wishes = ("--name", "meadow", "--cut", cut, *own, "--timeout", "10m")
        gear(self.state, "submit", str(self.project), *wishes)

    def grow(self, count: int, last: str = "") -> None:
        """More lines in the files of all devices."""
        for name, file in self.files.items():
            more = [(f"{name}{self.chance.choice('ab')}", self.chance.randrange(100)) for _ in range(count)]
            self.records[name] += more
            with file.open("a") as out:
                out.write("".join(f"{sensor} {value}\n" for sensor, value in more) + last)

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Have the files grow meanwhile."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(0.1):
                self.grow(1)

        beside = threading.Thread(target=work)
        beside.start()
        try:
            yield
        finally:
            over.set()
            beside.join()

    def agent(self, device: str) -> Path:
        return self.places.agent(device, NAME)

    def kill_agent(self, device: str, revision: int) -> None:
        """Kill the agent of a device that was told of a revision as soon as it is there, and the next one."""
        former = 0
        for _ in range(2):
            look = partial(self._agent_of, device, revision, former)
            former = until(look, f"{device} with revision {revision}")
            os.kill(former, signal.SIGKILL)

    def _agent_of(self, device: str, revision: int, former: int) -> int:
        folder = self.agent(device)
        told = (folder / "agent.toml").read_text() if (folder / "agent.toml").exists() else ""
        pid = read_report(folder / "status.json").get("pid", 0)
        is_it = f"revision = {revision}\n" in told and isinstance(pid, int) and pid != former
        return pid if is_it and pid and is_alive(pid) else 0

    def kill_ingest(self, revision: int) -> None:
        """Kill ingest as soon as the revision is in force, when devices are about to go over."""

        def is_in_force() -> bool:
            flows = read_report(self.places.spark_status).get("flows", {})
            return bool(flows.get(NAME, {}).get("revision") == revision)

        until(is_in_force, f"revision {revision} in force")
        os.kill(until(lambda: pids(self.state).get("ingest"), "ingest"), signal.SIGKILL)

    def gone(self) -> dict[str, Gone]:
        """By device, what the log has of its way."""
        log, found = LogReader(self.places.log), {name: Gone() for name in DEVICES}
        (key,) = log.keys()
        second, third = (log.boundary(NAME, number)[key] for number in (2, 3))
        sent = Counter[str]()
        for entry in log.entries(NAME, key, 0, log.positions(NAME)[key]):
            if entry.device not in found:
                continue
            one = found[entry.device]
            if entry.kind is EntryKind.CROSSING:
                assert entry.seq == len(one.crossed) + 1
                assert number_of(entry.reason) == entry.seq + 1
                assert entry.number > (second, third)[len(one.crossed)]
                one.crossed.append(sent[entry.device])
            if entry.kind is not EntryKind.ROWS or not entry.count:
                continue
            if entry.channel == "sums":
                sent[entry.device] += entry.count
            elif entry.channel == "high" and entry.number < second:
                one.warm += entry.count
            elif entry.channel == "counts":
                assert len(one.crossed) == 1
                one.counted += entry.count if entry.number < third else 0
        return found


def expected(records: dict[str, list[tuple[str, int]]], ways: dict[str, Gone]) -> dict[str, list[Any]]:
    """What the tables are to hold."""
    tables = defaultdict[str, list[Any]](list)
    for device, way in ways.items():
        first, second = way.crossed
        numbers, totals, since = Counter[str](), Counter[str](), Counter[str]()
        warm = 0
        for at, (sensor, value) in enumerate(records[device]):
            numbers[sensor] += 1
            totals[sensor] += value * (10 if first <= at < second else 1)
            tables["each"].append((sensor, numbers[sensor], totals[sensor]))
            warm += value > 50
            if value > 50 and (warm <= way.warm or at >= second):
                tables["warm"].append((sensor, value))
            if first <= at < first + way.counted:
                since[sensor] += 1
                tables["counts"].append((sensor, since[sensor], 0))
    return tables


def beside(*work: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.long
def test_devices_get_other_steps_and_the_former_ones_back_though_agents_and_ingest_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.install(FIRST)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(world.project / "src"))
    state, project = world.state, str(world.project)
    with platform(state):
        client = client_of(state)
        world.submit("sums,high")
        world.grow(100)
        world.install(SECOND)
        said = " ".join(gear(state, "update", "meadow", project, "--cut", "counts", "--dry-run").split())
        for words in ("sums replaced kept", "high removed", "counts attached"):
            assert words in said
        with world.growing():
            deaths = beside(lambda: world.kill_ingest(2), lambda: world.kill_agent("d1", 2))
            gear(state, "update", "meadow", project, "--cut", "counts", "--timeout", "10m")
            for death in deaths:
                death.join(WAIT_S)
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone over")
        world.grow(100)
        world.install(FIRST)
        with world.growing():
            deaths = beside(lambda: world.kill_ingest(3), lambda: world.kill_agent("d2", 3))
            gear(state, "rollback", "meadow", "--timeout", "10m")
            for death in deaths:
                death.join(WAIT_S)
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone back")
        assert client.get("/apps/meadow")["cut"] == "sums,high"
        (newest, *_) = json.loads(gear(state, "revisions", "meadow", "--json"))
        assert (newest["number"], newest["state"], newest["behind_count"]) == (3, "in force", 0)
        world.grow(100, last="end\n")
        until_ended(client, "meadow")
        ways = world.gone()
        for way in ways.values():
            assert 0 < way.crossed[0] < way.crossed[1]
            assert way.counted > 0
        for table, wanted in expected(world.records, ways).items():
            page = client.get(f"/apps/meadow/tables/{table}?limit=10000")
            assert sorted(map(tuple, page["rows"])) == sorted(wanted), table
            assert wanted
