"""Devices that have joined get other steps over the air, in signed bundles, while they send; with Spark.

One is killed at each step of it, and is given code that does not work there. The other is away meanwhile, and
misses two revisions. The tables are compared with what plain Python makes of the same records, given the
place in the log at which each device has gone over.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from geartrain_client.signing.keys import new_author
from geartrain_cloud.log.entry_reasons import number_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from geartrain_edge.bundles.choice import short
from geartrain_edge.parent.config import read_device
from tests.control.platform_client import client_of
from tests.proofs.test_open_platform import AGENT, LIFE_S, join, open_platform
from tests.proofs.test_platform import gear, until, until_ended
from tests.proofs.test_platform_device_revisions import FIRST, NAME, SECOND, Gone, World, expected
from tests.supervisor.test_up import platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

WIDER = SECOND.replace(
    "class Lines:",
    "class Wider(State):\n    number: int = 0\n    total: int = 0\n    last: int = 0\n\n\nclass Lines:",
).replace(
    "    state = Held\n    factor",
    "    state = Wider\n    migrate = {Held: lambda held: Wider(held.number, held.total)}\n    factor",
)
"""Its sums are kept by another type, which is made of the former one."""
BAD = "import os\n" + WIDER + 'readings.filter(lambda r: os._exit(7), name="hot").sink("h", Table("hot"))\n'
"""Its new step ends the process of the app with its first record."""


class Truck:
    """A device that has joined: its folder, and the parent of its agents while it runs."""

    def __init__(self, file: Path, where: Path) -> None:
        self._file, self._where = file, where
        self.state = Path(read_device(str(file)).state)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._file.parent / "log").open("ab") as log:
            command = [sys.executable, *AGENT, "--device", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._where)

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(WAIT_S)
            self._process = None

    def kill_once(self, name: str, words: str) -> None:
        """Kill it as soon as a file of the app, or its bundle, says so, and start it again."""
        path = self.state / name

        def says() -> bool:
            try:
                return path.is_dir() or words in path.read_text()
            except FileNotFoundError:
                return False

        until(says, f"{words} in {path}")
        self.end(signal.SIGKILL)
        self.start()


def open_for_a_day(state: Path) -> None:
    """A platform whose certificates last: who is away for longer than that has to join again."""
    open_platform(state)
    settings = state / "platform.toml"
    settings.write_text(settings.read_text().replace(repr(LIFE_S / 86_400), "1"))


def ways(world: World) -> dict[str, Gone]:
    """By device, what the log has of its way, up to its one crossing and behind it."""
    log, found, sent = LogReader(world.places.log), {name: Gone() for name in world.records}, Counter[str]()
    (key,) = log.keys()
    second = log.boundary(NAME, 2)[key]
    for entry in log.entries(NAME, key, 0, log.positions(NAME)[key]):
        one = found.get(entry.device)
        if one is None:
            continue
        if entry.kind is EntryKind.CROSSING:
            to = {"d1": 2, "d2": 4}[entry.device]
            assert number_of(entry.reason) == to
            assert entry.number > log.boundary(NAME, to)[key]
            assert not one.crossed
            one.crossed.append(sent[entry.device])
        if entry.kind is not EntryKind.ROWS or not entry.count:
            continue
        if entry.channel == "sums":
            sent[entry.device] += entry.count
        elif entry.channel == "high" and entry.number < second:
            one.warm += entry.count
        elif entry.channel == "counts":
            one.counted += entry.count
    for name, one in found.items():
        one.crossed.append(len(world.records[name]))  # and so it stays to the end
    return found


def test_joined_devices_get_other_steps_though_one_is_killed_at_each_step_and_one_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    monkeypatch.chdir(nothing)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    new_author(tmp_path / "keys", "alice")
    world = World(tmp_path)
    state, project = world.state, str(world.project)
    open_for_a_day(state)
    with platform(state), ExitStack() as ends:
        client = client_of(state)
        trucks = {name: Truck(join(state, name, tmp_path / "devices"), nothing) for name in world.files}
        for truck in trucks.values():
            ends.callback(truck.end)
            truck.start()
        d1, d2 = trucks["d1"], trucks["d2"]
        own = [f"--device-set={name}:readings.path={path}" for name, path in world.files.items()]
        world.install(FIRST)
        gear(state, "submit", project, "--name", "meadow", "--cut", "sums,high", *own, "--timeout", "10m")
        world.grow(100)
        until(lambda: client.get("/apps/meadow/tables/each?limit=10000")["rows"], "rows")
        d2.end()

        world.install(WIDER)
        with world.growing():
            gear(state, "update", "meadow", project, "--cut", "counts", "--no-wait")
            code = client.get("/apps/meadow/revisions")["items"][0]["code"]
            d1.kill_once(f"bundles/{code}", "")
            d1.kill_once(f"{NAME}/agent.toml", code)
            d1.kill_once(f"{NAME}/committed", code)

        def behind() -> list[str]:
            (newest, *_) = json.loads(gear(state, "revisions", "meadow", "--json"))
            return list(newest["behind"]) if newest["state"] == "in force" else []

        until(lambda: behind() == ["d2"], "d1 has gone over")
        world.grow(50)

        world.install(BAD)
        with world.growing():
            gear(state, "update", "meadow", project, "--cut", "hot", "--no-wait")
            said = until(partial(went_back, state), "d1 says that it went back")
        assert f"to {short(code)}: " in said
        assert "ended with 7" in said
        assert behind() == ["d1", "d2"]

        gear(state, "rollback", "meadow", "--no-wait")
        until(lambda: behind() == ["d2"], "d1 runs what the rollback wants")
        d2.start()
        until(lambda: client.get("/apps/meadow")["crossing"] is None, "all have gone over")
        world.grow(50, last="end\n")
        until_ended(client, "meadow")
        assert not went_back(state)
        found = ways(world)
        for table, wanted in expected(world.records, found).items():
            page = client.get(f"/apps/meadow/tables/{table}?limit=10000")
            assert sorted(map(tuple, page["rows"])) == sorted(wanted), table
            assert wanted


def went_back(state: Path) -> str:
    """What `gear info` says of code that went back, "" where it says nothing."""
    said = " ".join(gear(state, "info", "meadow").split())
    return said if "went back" in said else ""
