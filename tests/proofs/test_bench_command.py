"""`gear bench` on a source without an end: each run ends after its time, and nothing is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FOR_S = 4

FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.simulated import SimulatedSensor


class Reading(Record):
    value: float


class Meter(SimulatedSensor[Reading]):
    def make(self, random, number, device):
        return Reading(random.random())


flow = Flow("live")
readings = flow.source("readings", Meter(period_ms=5, speed=1.0), out=Reading)
readings.sink("out", Table("out"))
"""


def test_a_live_source_is_measured_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "live.py").write_text(FLOW, encoding="utf-8")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "geartrain_client.cli", "bench", "live:flow", "--cut", "cloud"]
    done = subprocess.run(
        [*command, "--for", f"{FOR_S}s", "--runs", "2", "--json"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["runs"]
    assert (first["number"], second["number"]) == (1, 2)
    for run in (first, second):
        assert run["records"] >= 400
        assert 200 <= run["log_rows"] <= 1.5 * run["records"]
        assert {"spark", "ingest", "control", "device d1"} <= run["cpu_s"].keys()
        assert run["seconds"] >= FOR_S
    assert list(temporary.glob("gear-bench-*")) == []
