"""A platform whose control is stopped goes on as it was told, whatever else is killed meanwhile.

Control is stopped for the time of this test, and not for a day. The table is compared with plain Python.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from geartrain.adapters.files import write_private
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, kill, until, until_ended
from tests.supervisor.test_up import pids, platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RECORDS, SENSORS, BEFORE = 3_000, 5, 200
FLOW = """
from pathlib import Path

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.source import Batch, Source


class Reading(Record):
    sensor: str
    level: int


class Sum(State):
    total: int = 0


class Sums(Task[Reading, Reading]):
    state = Sum

    def on_next(self, reading: Reading, ctx: Context[Reading, Sum]) -> None:
        ctx.state.total += reading.level
        ctx.emit(Reading(reading.sensor, ctx.state.total))


class Gated(Source[Reading]):
    bounded = True
    replayable = True
    in_order = True
    gate: str = ""
    records: int = 0

    def open(self, device, step, out):
        return [Part(self, device, device)]


class Part:
    out_of_orderness_us = 0

    def __init__(self, source, device, name):
        self.name, self._source, self._device = name, source, device

    async def read(self, position, limit):
        end = min(position + limit, self._source.records, int(Path(self._source.gate).read_text()))
        numbers = list(range(position, max(position, end)))
        values = [Reading(f"{self._device}-{n % 5}", n) for n in numbers]
        times = [1_767_225_600_000_000 + n * 1_000_000 for n in numbers]
        end = max(position, end)
        return Batch(values, times, numbers, end, ended=end >= self._source.records)

    async def close(self):
        pass


flow = Flow("gated")
readings = flow.source("readings", Gated(), out=Reading, partitioned_by="sensor")
readings.key_by("sensor").process("sums", Sums()).sink("totals", Table("totals", key=("sensor",)))
"""


def totals(devices: tuple[str, ...], records: int) -> dict[str, int]:
    """What the table must hold."""
    return {
        f"{device}-{sensor}": sum(range(sensor, records, SENSORS))
        for device in devices
        for sensor in range(SENSORS)
    }


def in_the_table(state: Path) -> dict[str, int]:
    """What it holds, read past control."""
    path = PlatformPlaces(state).tables("gated.1")
    if not path.exists():
        return {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=WAIT_S)) as connection:
        try:
            return dict(connection.execute("SELECT sensor, level FROM totals"))
        except sqlite3.OperationalError:
            return {}  # it is not made yet


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_with_control_gone_all_goes_on_and_the_tables_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gated.py").write_text(FLOW, encoding="utf-8")
    gate, state, devices = tmp_path / "gate", tmp_path / "state", ("d1", "d2")
    write_private(gate, str(BEFORE))  # in one step, since the sources look at any time
    with platform(state):
        client = client_of(state)
        for device in devices:
            gear(state, "device", "add", device, "--local")
        options = (f"--set=readings.gate={gate}", f"--set=readings.records={RECORDS}")
        gear(state, "submit", "gated:flow", "--no-wait", *options)
        until(lambda: in_the_table(state) == totals(devices, BEFORE), "the first rows")
        control = pids(state)["control"]
        os.kill(control, signal.SIGSTOP)
        until(lambda: is_stopped(control), "the stop of control")
        for victim in ("device d1", "ingest", "spark"):
            kill(state, victim)
        write_private(gate, str(RECORDS))
        until(lambda: in_the_table(state) == totals(devices, RECORDS), "all rows")
        assert is_stopped(control)
        assert pids(state)["control"] == control
        os.kill(control, signal.SIGCONT)
        until_ended(client, "gated")
        assert dict(client.get("/apps/gated/tables/totals")["rows"]) == totals(devices, RECORDS)
