"""A whole platform whose devices have different cuts, and go from one to another while they send; with Spark.

The tables are compared with what plain Python makes of the same records: no row is lost, none is doubled, and
a step that needs the order of its records gets it, whichever way they come.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.reader import LogReader
from tests.control.platform_client import Client, client_of
from tests.drawing import drawn
from tests.proofs.test_platform import ASKED_S, gear, until, until_ended
from tests.proofs.test_platform_revisions import FLOW
from tests.supervisor.test_up import pids, platform, until_restarted
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

MEADOW = (
    FLOW.replace("FACTOR", "1")
    + """
def double(reading: Reading) -> Reading:
    return Reading(reading.sensor, 2 * reading.value)

doubled = readings.map(double, name="doubled")
doubled.filter(lambda r: r.value > 100, name="high").sink("w", Table("warm"))
"""
)
DEVICES = ("d1", "d2", "d3")
VICTIMS = ("downlink", "ingest", "spark")
RECORDS_MAX = 2_800
"""Of each device, so that a table has one page."""


class Fleet:
    """Three devices, and the file that each reads."""

    def __init__(self, folder: Path) -> None:
        self.state, self.chance = folder / "state", random.Random(11)
        self.files = {name: folder / f"{name}.txt" for name in DEVICES}
        self.records: dict[str, list[tuple[str, int]]] = {name: [] for name in DEVICES}
        self.own = [f"--device-set={name}:readings.path={path}" for name, path in self.files.items()]
        for file in self.files.values():
            file.write_text("")

    def grow(self, count: int) -> None:
        """More lines in the files of all devices."""
        for name, file in self.files.items():
            more = [(f"{name}{self.chance.choice('ab')}", self.chance.randrange(100)) for _ in range(count)]
            self.records[name] += more
            with file.open("a") as out:
                out.write("".join(f"{sensor} {value}\n" for sensor, value in more))

    def ask(self, *arguments: str) -> Any:
        """What a command says while the files grow beside it."""
        with self.growing():
            return json.loads(gear(self.state, *arguments, "--timeout", "10m", "--json"))

    @contextmanager
    def growing(self, every_s: float = 0.1, most: int = RECORDS_MAX) -> Iterator[None]:
        """The files grow meanwhile, to at most so many records."""
        over = threading.Event()

        def growing() -> None:
            while not over.wait(every_s):
                if len(self.records["d1"]) < most:
                    self.grow(1)

        beside = threading.Thread(target=growing)
        beside.start()
        try:
            yield
        finally:
            over.set()
            beside.join()

    def refusal(self, *arguments: str) -> str:
        """Why a command is refused, in its own words."""
        command = [sys.executable, "-m", "geartrain_client.cli", *arguments, "--state", str(self.state)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=self.state.parent
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    def end(self) -> None:
        for file in self.files.values():
            with file.open("a") as out:
                out.write("end\n")

    def expected(self) -> dict[str, list[tuple[Any, ...]]]:
        """What the tables are to hold."""
        each, warm = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        for records in self.records.values():
            numbers, totals = Counter[str](), Counter[str]()
            for sensor, value in records:
                numbers[sensor] += 1
                totals[sensor] += value
                each.append((sensor, numbers[sensor], totals[sensor]))
                if 2 * value > 100:
                    warm.append((sensor, 2 * value))
        return {"each": each, "warm": warm}

    def check(self, client: Client) -> None:
        """Once the app has ended, its tables are what they should be."""
        until_ended(client, "meadow")
        for table, wanted in self.expected().items():
            page = client.get(f"/apps/meadow/tables/{table}?limit=10000")
            assert sorted(map(tuple, page["rows"])) == sorted(wanted), table
            assert wanted


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """One whose flow can be submitted from the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    (tmp_path / "meadow.py").write_text(MEADOW)
    return Fleet(tmp_path)


def cuts_of(client: Client) -> dict[str, str]:
    """The cut with which each device runs."""
    applied = client.get("/apps/meadow")["applied"]
    return {one["device"]: one["cut"] for one in applied if one["cut_applied"]}


def test_devices_with_different_cuts_move_a_step_while_they_send(fleet: Fleet) -> None:
    with platform(fleet.state):
        client = client_of(fleet.state)
        for name in DEVICES:
            kind = "old" if name == "d3" else "new"
            gear(fleet.state, "device", "add", name, "--local", "--label", f"kind={kind}")
        fleet.grow(50)
        cuts = ["--cut", "cloud", "--device-cut", "d1:high"]
        fleet.ask("submit", "meadow:flow", *cuts, *fleet.own)
        assert cuts_of(client) == {"d1": "high", "d2": "cloud", "d3": "cloud"}
        refused = fleet.refusal("move", "meadow", "hihg", "--to", "edge", "--devices", "d2")
        assert "has no step 'hihg': it has readings" in refused
        refused = fleet.refusal("move", "meadow", "high", "--to", "edge", "--devices", "kind=odd")
        assert "no device of app meadow matches kind=odd" in refused
        assert "w" in fleet.refusal("cut", "meadow", "w", "--devices", "d2")

        # The plan has this cut already: the devices alone go over.
        moved = fleet.ask("move", "meadow", "high", "--to", "edge", "--devices", "d2")
        assert (moved["number"], moved["revises"]) == (1, False)
        # The data centre's part takes doubled records first, as its second revision.
        moved = fleet.ask("move", "meadow", "high", "--to", "cloud", "--devices", "d1")
        assert (moved["number"], moved["revises"]) == (2, True)
        assert cuts_of(client) == {"d1": "doubled", "d2": "high", "d3": "cloud"}
        fleet.ask("cut", "meadow", "doubled", "--devices", "kind=old")
        fleet.ask("cut", "meadow", "cloud", "--devices", "d2")
        assert cuts_of(client) == {"d1": "doubled", "d2": "cloud", "d3": "doubled"}
        # What an agent really takes is more than this, so that a device goes down by itself.
        fleet.ask("cut", "meadow", "adaptive", "--devices", "d3", "--capacity", "0.001")
        with fleet.growing(0.5, RECORDS_MAX + 480):
            until(lambda: cuts_of(client).get("d3") == "cloud", "d3 with the cut that takes least", ASKED_S)
        (move,) = client.get("/apps/meadow")["adaptive"]["moves"]
        assert (move["device"], move["before"], move["cut"]) == ("d3", "doubled", "cloud")
        assert "records/s it takes" in move["why"]
        fitted = fleet.ask("cut", "meadow", "auto", "--devices", "d1", "--capacity", "0.001", "--no-wait")
        assert [(one["device"], one["cut"]) for one in fitted["devices"]] == [("d1", "cloud")]
        assert "as little as it may do" in fitted["devices"][0]["why"]
        until(lambda: cuts_of(client).get("d1") == "cloud", "d1 with the cut that fits it", ASKED_S)
        fleet.grow(20)
        fleet.end()
        fleet.check(client)


@pytest.mark.long
def test_a_step_leaves_a_device_with_what_it_keeps_while_the_host_is_killed(fleet: Fleet) -> None:
    with platform(fleet.state):
        client = client_of(fleet.state)
        for name in DEVICES:
            gear(fleet.state, "device", "add", name, "--local")
        fleet.grow(200)
        fleet.ask("submit", "meadow:flow", "--cut", "cloud", "--device-cut", "d1:sums", *fleet.own)
        dry = fleet.ask("move", "meadow", "sums", "--to", "cloud", "--devices", "d1", "--dry-run")
        keeps = {one["step"]: one["keeps"] for one in dry["moves"]}
        assert (keeps, dry["refusals"]) == ({"by_sensor": False, "sums": True}, [])
        host = pids(fleet.state)["spark"]
        moved = fleet.ask("move", "meadow", "sums", "--to", "cloud", "--devices", "d1", "--no-wait")
        assert (moved["count"], moved["revises"]) == (1, False)
        os.kill(host, signal.SIGKILL)
        fleet.grow(100)
        until_restarted(fleet.state, "spark", host)
        until(lambda: cuts_of(client).get("d1") == "cloud", "d1 with the cut of the others", ASKED_S)
        fleet.grow(100)
        fleet.end()
        fleet.check(client)
        logged = LogReader(fleet.state / "log")
        assert logged.counters()["rows:meadow.1/_state"] == 2


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(drawn("victims of a move", VICTIMS, 1), id="drawn"),
        pytest.param(VICTIMS, id="each", marks=pytest.mark.long),
    ],
)
def test_a_step_comes_to_a_device_with_what_it_keeps_while_all_around_is_killed(
    fleet: Fleet, victims: Sequence[str]
) -> None:
    with platform(fleet.state):
        client = client_of(fleet.state)
        for name in DEVICES:
            gear(fleet.state, "device", "add", name, "--local")
        fleet.grow(100)
        fleet.ask("submit", "meadow:flow", "--cut", "cloud", *fleet.own)
        for turn, killed in enumerate(victims):
            process = pids(fleet.state)[killed]
            dies = threading.Timer(fleet.chance.uniform(0.5, 3), os.kill, (process, signal.SIGKILL))
            dies.start()
            moved = fleet.ask("move", "meadow", "sums", "--to", "edge", "--devices", "d1")
            assert (moved["count"], moved["revises"]) == (1, not turn)
            dies.join()
            assert cuts_of(client)["d1"] == "sums"
            fleet.grow(50)
            fleet.ask("move", "meadow", "sums", "--to", "cloud", "--devices", "d1")
            assert cuts_of(client)["d1"] == "cloud"
        fleet.grow(50)
        fleet.end()
        fleet.check(client)
        counted = LogReader(fleet.state / "log").counters()
        assert counted["rows:meadow.1/_claims"] >= 2 * len(victims)
        # A device may have gone on without what came too late.
        assert counted.get("rows:meadow.1/_state", 0) >= len(victims) - 1
