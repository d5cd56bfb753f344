"""Agents and stores of release 0.2.0, installed from its wheels, which ordered records otherwise.

Ingest of today takes nothing of such an agent, and serves one of today beside it. A log and a spool of the
release are refused in one sentence, and stay as they are.
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
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.ports.ledger import EntryKind
from tests.packaging.environments import environment
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S, Wait

pytestmark = pytest.mark.slow

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

    def agent(self, device: str, *, is_old: bool) -> subprocess.Popen[str]:
        """Start a device's agent, of the release or of today."""
        sources = {
            name: {"path": str(self.folder / f"{device}-{name}.csv"), "speed": "max"}
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
        wait = Wait("what the agents come to")
        while not condition():
            wait.check()
            time.sleep(0.05)

    @staticmethod
    def end(process: subprocess.Popen[str], *, asked: bool = True) -> None:
        """Have a process end, or wait until it does by itself: with 0 and no trace."""
        if asked:
            process.terminate()
        said = process.communicate(timeout=WAIT_S)[1]
        assert process.returncode == 0, said
        assert "Traceback" not in said

    @staticmethod
    def refused(process: subprocess.Popen[str], sentence: str) -> None:
        """Wait until a process ends by a mistake that it says in one sentence."""
        said = process.communicate(timeout=WAIT_S)[1]
        assert process.returncode != 0
        assert sentence in said
        assert "Traceback" not in said

    def counters(self) -> dict[str, int]:
        """The totals of ingest in its status: the ledger gets those of a refusal only with later data."""
        totals: dict[str, int] = read_report(self.folder / "log" / "status.json").get("counters", {})
        return totals


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


def test_ingest_of_today_takes_nothing_of_an_agent_of_the_release(story: Story) -> None:
    fleet = ["old-1", "new-1"]
    for seed, device in enumerate(fleet):
        story.write_files(device, seed)
    ingest = story.ingest(fleet)
    old, new = (story.agent(device, is_old=device.startswith("old")) for device in fleet)
    story.until(lambda: story.counters().get("other_wire_version", 0) > 0)
    story.end(new, asked=False)
    # An agent reads no source before ingest has welcomed it.
    story.until(lambda: story.status("old-1").get("state") == "greeting")
    waiting = story.status("old-1")
    assert (waiting["acked_seq"], waiting["records_read"]) == (0, 0)
    old.kill()
    story.end(ingest)
    reader = LogReader(story.folder / "log")
    entries = [entry for key in reader.positions("heat") for entry in reader.entries("heat", key, 0, 10_000)]
    assert EntryKind.ROWS in {entry.kind for entry in entries if entry.device == "new-1"}
    assert {entry.kind for entry in entries if entry.device == "old-1"} == {EntryKind.ASSIGNED}


def test_a_log_and_a_spool_of_the_release_are_refused_and_stay_as_they_are(story: Story) -> None:
    story.write_files("old-1", 10)
    ingest = story.ingest(["old-1"], is_old=True)
    story.end(story.agent("old-1", is_old=True), asked=False)
    story.end(ingest)
    files = (story.folder / "log" / "ledger.sqlite", story.folder / "old-1" / "spool.sqlite")
    before = [file.read_bytes() for file in files]
    story.refused(story.ingest(["old-1"]), f"the ledger {files[0]} has layout 4 of a former version")
    story.refused(story.agent("old-1", is_old=False), f"spool {files[1]} has layout 3 of a former version")
    assert [file.read_bytes() for file in files] == before
