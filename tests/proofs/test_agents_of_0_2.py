"""Agents of release 0.2.0, installed from its wheels, served by ingest of today.

Alone and beside an agent of today, in a fresh log and in one that the release began and `gear log migrate`
renumbered.

The tables are compared with sums made here in plain Python from the same files.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.tables import rows
from tests.packaging.environments import environment
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RELEASE = "918601d"
"""The commit of release 0.2.0."""
START_S, ROWS, MINUTE_S = 1_767_225_600, 600, 60
FLOW = """
from datetime import timedelta

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    value: int


class Minute(Record):
    sensor: str
    window_start: int
    n: int
    total: int


def both(reading: Reading) -> Reading:
    return Reading("both", reading.value)


flow = Flow("heat")
heat = flow.source("heat", CsvReplay(time_column="time"), out=Reading)
doors = flow.source("doors", CsvReplay(time_column="time"), out=Reading)
minutes = heat.key_by("sensor").window(tumbling(timedelta(minutes=1)))
found = minutes.aggregate("minutes", out=Minute, n=agg.count(), total=agg.sum("value"))
found.sink("of_heat", Table("minutes"))
every = heat.map(both, name="heat_of_both").merge("every", doors.map(both, name="doors_of_both"))
together = every.key_by("sensor").window(tumbling(timedelta(minutes=1)))
found = together.aggregate("together", out=Minute, n=agg.count(), total=agg.sum("value"))
found.sink("of_both", Table("together"))
"""
OUTLINE = """
import json
from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
plan = make_plan(load_flow("heat_of_both:flow").graph(), "edge")
ours = [channel for channel in plan.channels if not channel.id.startswith("_")]
print(json.dumps({channel.id: sorted(channel.sources) for channel in ours}))
"""


@pytest.fixture(scope="module")
def sources_of_old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release, out of the history that every clone has."""
    folder = tmp_path_factory.mktemp("release")
    archive = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def old_python(sources_of_old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds nothing but the wheels of the release's agent."""
    folder = tmp_path_factory.mktemp("wheels")
    parts = [str(sources_of_old / part) for part in ("protocol", "devices", "edge")]
    return environment(folder / "venv", *parts)


class Story:
    """A broker, an ingest and agents as processes; what they read and what comes of it."""

    def __init__(self, folder: Path, old_python: Path, sources_of_old: Path) -> None:
        self.folder, self.old_python, self.sources_of_old = folder, old_python, sources_of_old
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "heat_of_both.py").write_text(FLOW)
        broker = choose_broker("amqtt", folder)
        self.address = broker.address
        self.processes.append(subprocess.Popen(broker.command, text=True))
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        self.environment = os.environ | {"PYTHONPATH": str(folder)}
        asked = [sys.executable, "-c", OUTLINE]
        said = subprocess.run(asked, env=self.environment, capture_output=True, check=True, text=True).stdout
        self.channels: dict[str, list[str]] = json.loads(said)

    def start(
        self, python: Path | str, module: str, file: Path, more: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a program; more: what its imports are looked for in first."""
        environment = dict(self.environment)
        if more is not None:
            parts = ("cloud", "protocol", "edge", "devices")
            environment["PYTHONPATH"] = ":".join([*(str(more / part) for part in parts), str(self.folder)])
        command = [str(python), "-m", module, "--config", str(file)]
        process = subprocess.Popen(
            command, env=environment, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def ingest(self, devices: list[str], *, is_old: bool = False) -> subprocess.Popen[str]:
        """Start ingest, of the release or of today."""
        file = self.folder / "ingest.toml"
        flow: dict[str, Any] = {"devices": devices}
        if is_old:
            flow["channels"] = dict.fromkeys(self.channels, "all")
        else:
            flow |= {"sources": {"heat": "all", "doors": "all"}, "channels": self.channels}
        file.write_text(
            to_toml({"log": str(self.folder / "log"), "broker": self.address, "flows": {"heat": flow}})
        )
        return self.start(
            sys.executable, "geartrain_cloud.ingest.main", file, self.sources_of_old if is_old else None
        )

    def agent(self, device: str, *, is_old: bool, speed: str | int = "max") -> subprocess.Popen[str]:
        """Start a device's agent, of the release or of today."""
        sources = {
            name: {"path": str(self.folder / f"{device}-{name}.csv"), "speed": speed}
            for name in ("heat", "doors")
        }
        content = {
            "device": device,
            "flow": "heat_of_both:flow",
            "cut": "edge",
            "state": str(self.folder / device),
            "broker": self.address,
            "commit": {"records_max": 50, "interval_ms": 50},
            "sources": sources,
        }
        file = self.folder / f"{device}.toml"
        file.write_text(to_toml(content))
        return self.start(self.old_python if is_old else sys.executable, "geartrain_edge.agent.process", file)

    def write_files(self, device: str, seed: int) -> None:
        """What a device reads: a row a second of each source, of a few sensors."""
        chance = random.Random(seed)
        for name in ("heat", "doors"):
            with (self.folder / f"{device}-{name}.csv").open("w", newline="") as file:
                out = csv.writer(file)
                out.writerow(("time", "sensor", "value"))
                for second in range(ROWS):
                    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + second))
                    out.writerow((at, f"{device}-{chance.randrange(3)}", chance.randrange(-1_000, 1_000)))

    def status(self, device: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / device / "status.json").read_text()))
        except FileNotFoundError:
            return {}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @staticmethod
    def end(process: subprocess.Popen[str], *, asked: bool = True) -> None:
        """Have a process end, or wait until it does by itself: with 0 and no trace."""
        if asked:
            process.terminate()
        said = process.communicate(timeout=WAIT_S)[1]
        assert process.returncode == 0, said
        assert "Traceback" not in said

    def tables(self) -> dict[str, Counter[tuple[str, int, int, int]]]:
        """What Spark makes of the log, to its end."""
        file = self.folder / "driver.toml"
        file.write_text(
            'flow = "heat_of_both:flow"\ncut = "edge"\nlog = "log"\nstate = "state"\n'
            'tables = "tables.sqlite"\n'
        )
        self.end(self.start(sys.executable, "geartrain_cloud.spark.driver", file), asked=False)
        names = ("sensor", "window_start", "n", "total")
        return {
            table: Counter(
                tuple(row[name] for name in names) for row in rows(self.folder / "tables.sqlite", table)
            )
            for table in ("minutes", "together")
        }

    def expected(self, devices: list[str]) -> dict[str, Counter[tuple[str, int, int, int]]]:
        """The same from the files."""
        found: dict[str, dict[tuple[str, int], list[int]]] = {"minutes": {}, "together": {}}
        for device in devices:
            for name in ("heat", "doors"):
                with (self.folder / f"{device}-{name}.csv").open(newline="") as file:
                    read = list(csv.DictReader(file))
                for second, row in enumerate(read):
                    start_us = (START_S + second) // MINUTE_S * MINUTE_S * 1_000_000
                    value = int(row["value"])
                    found["together"].setdefault(("both", start_us), []).append(value)
                    if name == "heat":
                        found["minutes"].setdefault((row["sensor"], start_us), []).append(value)
        return {
            table: Counter((*key, len(values), sum(values)) for key, values in of.items())
            for table, of in found.items()
        }


@pytest.fixture
def story(tmp_path: Path, old_python: Path, sources_of_old: Path) -> Iterator[Story]:
    one = Story(tmp_path, old_python, sources_of_old)
    yield one
    for process in one.processes:
        process.kill()
        process.communicate()


def test_the_agent_of_the_release_is_the_release(old_python: Path, sources_of_old: Path) -> None:
    asked = (
        "import geartrain, geartrain_edge.agent.agent as agent; print(geartrain.__version__, agent.__file__)"
    )
    said = subprocess.run([str(old_python), "-c", asked], capture_output=True, check=True, text=True).stdout
    version, file = said.split()
    assert version == "0.2.0"
    assert Path(file).read_bytes() == (sources_of_old / "edge/geartrain_edge/agent/agent.py").read_bytes()
    assert Path(file).read_bytes() != (ROOT / "edge/geartrain_edge/agent/agent.py").read_bytes()


@pytest.mark.parametrize(
    "fleet",
    [pytest.param(["old-1"], marks=pytest.mark.long), ["old-1", "new-1", "old-2"]],
    ids=["old", "mixed"],
)
def test_ingest_of_today_serves_agents_of_the_release(story: Story, fleet: list[str]) -> None:
    for seed, device in enumerate(fleet):
        story.write_files(device, seed)
    ingest = story.ingest(fleet)
    agents = [story.agent(device, is_old=device.startswith("old")) for device in fleet]
    for agent in agents:
        story.end(agent, asked=False)
    story.end(ingest)
    assert story.tables() == story.expected(fleet)
    assert_kept(story)


def test_an_agent_of_the_release_goes_on_after_the_log_was_migrated(story: Story) -> None:
    fleet = ["old-1", "new-1"]
    for seed, device in enumerate(fleet):
        story.write_files(device, 10 + seed)
    ingest = story.ingest(fleet, is_old=True)
    agent = story.agent("old-1", is_old=True, speed=100)
    story.until(
        lambda: (
            story.status("old-1").get("records_read", 0) >= ROWS and story.status("old-1")["acked_seq"] > 3
        )
    )
    story.end(agent)
    assert not story.status("old-1")["ended"]
    story.end(ingest)
    command = [sys.executable, "-m", "geartrain_client.cli", "log", "migrate", str(story.folder)]
    flow = ["--flow", "heat_of_both:flow", "--yes"]
    done = subprocess.run(
        [*command, *flow], env=story.environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sum(LogReader(story.folder / "log").positions("heat").values()) > 3
    ingest = story.ingest(fleet)
    agents = [story.agent(device, is_old=device.startswith("old")) for device in fleet]
    for one in agents:
        story.end(one, asked=False)
    story.end(ingest)
    assert story.tables() == story.expected(fleet)
    assert_kept(story)


def assert_kept(story: Story) -> None:
    """Nothing was refused, left with a device or too late."""
    counters = LogReader(story.folder / "log").counters()
    for name in ("quarantined_batches", "held_batches", "records_overtaken", "records_dropped", "losses"):
        assert counters.get(name, 0) == 0, name
