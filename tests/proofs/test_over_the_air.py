"""A flow over the air: its package is in its author's folder alone.

A real platform, Spark, and a device that has joined, with a folder of its own. Tables equal plain Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain_client.signing.folder import KEYS
from geartrain_client.signing.keys import new_author
from geartrain_cloud.rest.requests import ROWS_MAX
from tests.control.platform_client import Client, client_of
from tests.proofs.test_open_platform import join, open_platform, running
from tests.proofs.test_platform import until_ended
from tests.supervisor.test_up import platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ITEMS, PAUSE_S = 2_500, 0.001
FLOW = f"""
import time
from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.testing import TestingSource
from secretflow.version import VERSION

class Reading(Record):
    sensor: str
    number: int

class Seen(Record):
    sensor: str
    number: int
    device: int

class Counted(Record):
    sensor: str
    number: int
    device: int
    cloud: int
    count: int

class Count(State):
    count: int = 0

class Counting(Task[Seen, Counted]):
    state = Count

    def on_next(self, seen: Seen, ctx: Context[Counted, Count]) -> None:
        ctx.state.count += 1
        ctx.emit(Counted(seen.sensor, seen.number, seen.device, VERSION, ctx.state.count))

class Seeing(Task[Reading, Seen]):
    state = Count

    def on_next(self, reading: Reading, ctx: Context[Seen, Count]) -> None:
        time.sleep({PAUSE_S})
        ctx.state.count += 1
        ctx.emit(Seen(reading.sensor, reading.number, VERSION))

flow = Flow("air")
items = [(1_700_000_000_000_000 + n * 1_000, Reading("s", n)) for n in range({ITEMS})]
readings = flow.source("readings", TestingSource(items=items), out=Reading, partitioned_by="sensor")
seen = readings.key_by("sensor").process("seeing", Seeing()).at("edge")
seen.key_by("sensor").process("counting", Counting()).at("cloud").sink("all", Table("counted"))
"""


def project(folder: Path, version: int) -> Path:
    package = folder / "project" / "secretflow"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "pyproject.toml").write_text('[tool.geartrain]\nflow = "secretflow.flow:flow"\n')
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text(f"VERSION = {version}\n")
    (package / "flow.py").write_text(FLOW)
    return package.parent


def gear(state: Path, keys: Path, *arguments: str, code: int = 0) -> str:
    """What the author's `gear` prints: its results, or what it refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_client.cli", *arguments, "--state", str(state)],
        env={**os.environ, KEYS: str(keys)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=keys,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def rows(client: Client) -> list[tuple[int, int, int, int]]:
    """(number, version on the device, version in the cloud, count) of each row so far, by number."""
    page = client.get(f"/apps/air/tables/counted?limit={ROWS_MAX}")
    return sorted(tuple(row[1:]) for row in page["rows"])


def test_a_flow_comes_over_the_air_and_each_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    monkeypatch.chdir(nothing)
    keys, state = tmp_path / "keys", tmp_path / "state"
    new_author(keys, "alice")
    open_platform(state)
    with platform(state):
        client = client_of(state)
        device = join(state, "truck-1", tmp_path / "devices")
        with running(device, nothing):
            gear(state, keys, "submit", str(project(tmp_path, 1)))
            until_ended(client, "air")
            found = rows(client)
    assert found == [(n, 1, 1, n + 1) for n in range(ITEMS)]
