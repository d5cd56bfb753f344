"""The edge stays small (I8): the agent's wheels run a flow in a clean environment, with nothing heavy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edge.test_main import greeted
from tests.packaging.environments import environment
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "aiohttp", "typer", "amqtt")
FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay

class Reading(Record):
    sensor: str
    celsius: float

flow = Flow("heat")
flow.source("readings", CsvReplay(time_column="time"), out=Reading).sink("all", Table("readings"))
"""
PROBE = """
import json, sys
from geartrain_edge.agent.process import prepare
prepare()
import geartrain_edge.agent.main, geartrain_edge.agent.agent, geartrain_devices.csv_replay
status = open("/proc/self/status").read() if sys.platform == "linux" else "VmRSS: 0 kB"
rss = int(status.split("VmRSS:")[1].split()[0])
print(json.dumps({"rss_kb": rss, "modules": sorted(m for m in sys.modules if "." not in m)}))
"""


@pytest.fixture(scope="module", autouse=True)
def _no_other_paths() -> Iterator[None]:
    """What is installed is tried, and not what the environment of these tests names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def clean_python(_no_other_paths: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds only the wheels of protocol, devices and edge."""
    folder = tmp_path_factory.mktemp("wheels")
    parts = [str(ROOT / part) for part in ("protocol", "devices", "edge")]
    return environment(folder / "venv", *parts)


def test_the_agent_imports_in_a_clean_environment_within_its_memory(clean_python: Path) -> None:
    # The kernel may map more of files and of large pages than was asked for: the least of three says what is.
    probes = [
        subprocess.run([clean_python, "-c", PROBE], check=True, capture_output=True, text=True)
        for _ in range(3)
    ]
    found = min((json.loads(probe.stdout) for probe in probes), key=lambda one: one["rss_kb"])
    print(f"agent after import: {found['rss_kb'] / 1024:.1f} MiB RSS")
    assert not set(HEAVY) & set(found["modules"])
    assert found["rss_kb"] < 35_000
    pip = [sys.executable, "-m", "pip", "--python", str(clean_python), "list", "--format", "json"]
    listed = subprocess.run(pip, check=True, capture_output=True, text=True)
    installed = {p["name"] for p in json.loads(listed.stdout)}
    assert not set(HEAVY) & installed
    assert {"geartrain", "geartrain-devices", "geartrain-edge"} <= installed


def test_the_agent_spools_a_flow_there_while_no_broker_is_to_be_had(
    clean_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheel_heat.py").write_text(FLOW)
    rows = "".join(f"2026-01-01T00:00:{i:02d}Z,a,{i}\n" for i in range(60))
    (tmp_path / "heat.csv").write_text("time,sensor,celsius\n" + rows)
    (tmp_path / "agent.toml").write_text(
        'device = "d1"\nflow = "wheel_heat:flow"\nstate = "state"\nbroker = "127.0.0.1:9"\n'
        '[sources.readings]\npath = "heat.csv"\n'
    )
    monkeypatch.chdir(tmp_path)
    greeted(tmp_path / "agent.toml")
    agent = clean_python.parent / "gear-agent"
    process = subprocess.Popen([agent, "--config", "agent.toml"], cwd=tmp_path)
    try:
        status = _wait_for_spooled(tmp_path / "state" / "status.json", process)
        if sys.platform == "linux":
            memory = Path(f"/proc/{process.pid}/status").read_text()
            peak = re.search(r"VmHWM:\s+(\d+) kB", memory)
            assert peak
            print(f"agent running: {int(peak[1]) / 1024:.1f} MiB RSS at its highest")
            assert int(peak[1]) < 60_000
    finally:
        process.terminate()
        code = process.wait(timeout=WAIT_S)
    assert status["records_read"] == 60
    assert status["acked_seq"] == 0
    assert code == 0


def _wait_for_spooled(path: Path, process: subprocess.Popen[bytes]) -> dict[str, int]:
    for _ in range(200):
        assert process.poll() is None, "the agent ended"
        if path.exists():
            status: dict[str, int] = json.loads(path.read_text())
            if status["records_read"] == 60 and status["ended"]:
                return status
        time.sleep(0.1)
    raise AssertionError("the agent did not read its file within 20 s")
