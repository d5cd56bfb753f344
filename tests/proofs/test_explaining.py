"""Rows of a platform explained, and its log fetched and run again: with real devices, ingest and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.platform_client import client_of
from tests.proofs.test_platform import FLOW, gear, until_ended, write_readings
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_a_platforms_rows_are_explained_and_made_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "d2")}
    highs = write_readings(files["d1"], range(2), 1) | write_readings(files["d2"], range(2, 4), 2)
    state = tmp_path / "state"
    with platform(state):
        client = client_of(state)
        for name in files:
            gear(state, "device", "add", name, "--local", "--label", "kind=room")
        own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
        gear(state, "submit", "heat:flow", "--devices", "kind=room", "--cut", "cloud", "--no-wait", *own)
        until_ended(client, "heat")
        rows = client.get("/apps/heat/tables/highs")["rows"]
        assert dict(rows) == highs
        for sensor, celsius in rows:
            found = json.loads(gear(state, "explain", "heat", "highs", sensor, "--limit", "1000", "--json"))
            shown = found["records"]["shown"]
            assert found["reproduced"] is True
            assert {one["device"] for one in shown} == {"d1" if sensor in ("s0", "s1") else "d2"}
            assert shown[-1]["values"] == {"sensor": sensor, "celsius": celsius}
            assert max(one["values"]["celsius"] for one in shown) == celsius
            file = files[shown[-1]["device"]].read_text(encoding="utf-8").splitlines()
            lines = [f"{one['event_time']},{sensor},{one['values']['celsius']}" for one in shown]
            mine = [line for line in file if f",{sensor}," in line]
            assert lines == mine[: len(lines)]
        gear(state, "fetch", "heat", "--output", str(tmp_path / "fetched"))
    command = ["run", "heat:flow", "--fetched", "fetched", "--output", "again", "--json"]
    subprocess.run([sys.executable, "-m", "geartrain_client.cli", *command], cwd=tmp_path, check=True)
    again = json.loads((tmp_path / "again" / "highs.json").read_text(encoding="utf-8"))
    assert [[one["sensor"], one["celsius"]] for one in again] == rows
