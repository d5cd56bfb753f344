"""A whole platform: gear up, devices of this machine, submit, list, table, kill; with Spark, and under kills.

The tables are compared with sums made here in plain Python from the same files.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests.control.platform_client import Client, client_of
from tests.supervisor.test_up import is_alive, pids, platform
from tests.waiting import WAIT_S, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOW = """
from geartrain import Context, Flow, Record, State, Table, Task
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    celsius: float


class Highest(State):
    celsius: float = float("-inf")


class Records(Task[Reading, Reading]):
    state = Highest

    def on_next(self, reading: Reading, ctx: Context[Reading, Highest]) -> None:
        if reading.celsius > ctx.state.celsius:
            ctx.state.celsius = reading.celsius
            ctx.emit(reading)


flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading, partitioned_by="sensor")
readings.key_by("sensor").process("records", Records()).sink("highs", Table("highs", key=("sensor",)))
"""


def write_readings(path: Path, sensors: range, seed: int) -> dict[str, float]:
    """A file of readings, and the highest of each sensor."""
    chance, highs = random.Random(seed), dict[str, float]()
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["time", "sensor", "celsius"])
        for minute in range(600):
            sensor, celsius = f"s{chance.choice(sensors)}", round(chance.uniform(-20, 40), 3)
            out.writerow([f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z", sensor, celsius])
            highs[sensor] = max(highs.get(sensor, celsius), celsius)
    return highs


ASKED_S = 0.5
"""How often REST is asked for what takes long: each answer takes control some 10 ms of a core."""


def gear(state: Path, *arguments: str) -> str:
    """What `gear` prints, run where the flow is."""
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_client.cli", *arguments, "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=state.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(condition: Callable[[], Any], what: str, every_s: float = 0.1) -> Any:
    return wait_for(what, condition, pause_s=every_s)


def kill(state: Path, name: str) -> None:
    """End a process of the platform, and wait for the next one."""
    former = until(lambda: pids(state).get(name), name)
    os.kill(former, signal.SIGKILL)
    until(lambda: pids(state).get(name, former) != former, f"{name} again")


def until_ended(client: Client, name: str) -> None:
    ended = f"the end of {name}"
    until(lambda: client.get(f"/apps/{name}")["state"] == "ended", ended, ASKED_S)


@pytest.mark.long
def test_two_apps_on_two_devices_are_exact_though_all_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "d2")}
    highs = write_readings(files["d1"], range(4), 1) | write_readings(files["d2"], range(4, 9), 2)
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state = tmp_path / "state"
    with platform(state) as process:
        client = client_of(state)
        for name in files:
            gear(state, "device", "add", name, "--local", "--label", "kind=room")
        made = gear(state, "submit", "heat:flow", "--devices", "kind=room", "--no-wait", "--json", *own)
        assert json.loads(made)["instance"] == "heat.1"
        until(lambda: "ingest" in pids(state), "ingest")
        for victim in ("control", "broker", "ingest", "spark", "device d1"):
            kill(state, victim)
        assert client_of(state).url == client.url
        gear(state, "submit", "heat:flow", "--name", "again", "--cut", "cloud", "--no-wait", *own)
        # Everything at once: what gear up has started dies with it, and the next one goes on.
        running = pids(state)
        process.kill()
        process.wait()
        until(lambda: not any(is_alive(pid) for pid in running.values()), "the end of all")
    with platform(state) as process:
        client = client_of(state)
        for name in ("heat", "again"):
            until_ended(client, name)
            page = client.get(f"/apps/{name}/tables/highs")
            assert dict(page["rows"]) == highs
            assert page["columns"] == ["sensor", "celsius"]
        listed = json.loads(gear(state, "list", "--json"))
        assert {one["instance"]: one["state"] for one in listed} == {"heat.1": "ended", "again.1": "ended"}
        printed = gear(state, "table", "heat", "highs", "--csv").splitlines()
        assert {row[0]: float(row[1]) for row in csv.reader(printed[1:])} == highs
        made = gear(state, "submit", "heat:flow", "--no-wait", "--json", *own)
        assert json.loads(made)["instance"] == "heat.2"
        gear(state, "kill", "heat", "--purge")
        assert client.ask("GET", "/apps/heat")[0] == 404
        assert not PlatformPlaces(state).app("heat.2").exists()
        assert read_report(PlatformPlaces(state).spark_wanted)["flows"] == {}
