"""The control loop: each tank gets its own commands, once, also when the broker and others are killed.

tests/proofs/test_platform_down.py is the small form of the kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest

import geartrain_examples
from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.planning.cuts import Rule
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import agent_status
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.sinks.tables import rows
from geartrain_examples.control_loop.flow import LIMIT_M, Tank
from tests.demo.path_run import is_running, pid_of, processes, tables_of
from tests.demo.whole_app import run_to_the_end

FLOW = "geartrain_examples.control_loop.flow:flow"
DEVICES = ("tank-1", "tank-22", "tank-333")
START = datetime(2026, 1, 1, tzinfo=UTC)


def minutes(device: str, records: int) -> list[tuple[str, float]]:
    """(start, mean) of each minute, by exact arithmetic."""
    levels: dict[int, list[float]] = {}
    for number in range(records):
        chance = random.Random(f"1/{device}/levels/{number}")
        levels.setdefault(number // 60, []).append(Tank().make(chance, number, device).level_m)
    return [
        (
            f"{START + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}",
            float(sum(map(Fraction, found)) / len(found)),
        )
        for minute, found in levels.items()
    ]


def commands(device: str, records: int) -> list[dict[str, Any]]:
    return [
        {"tank": device, "since": start, "open_percent": min(100.0, 50 * (mean - LIMIT_M))}
        for start, mean in minutes(device, records)
        if mean > LIMIT_M
    ]


def test_the_example_is_short() -> None:
    path = Path(geartrain_examples.__file__).parent / "control_loop" / "flow.py"
    assert len(path.read_text().splitlines()) < 80


def test_commands_are_those_of_an_independent_computation(tmp_path: Path) -> None:
    run_in_process(load_flow(FLOW).graph(), tmp_path)
    found = json.loads((tmp_path / "valve.json").read_text())
    assert found == commands("local", 1_200)
    assert found


def test_the_plan_says_what_goes_down() -> None:
    plan = make_plan(load_flow(FLOW).graph(), "edge")
    assert [channel.id for channel in plan.down] == ["command_down"]
    assert plan.edge == ("levels", "levels_by_tank", "command", "valve")
    assert plan.reason(plan.graph["command_down"]).rule is Rule.DEALS


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_every_command_arrives_once_while_broker_sender_and_agents_are_killed(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    records = 2_000
    devices = {device: {"levels": {"records": records, "speed": 60}} for device in DEVICES}
    app = DemoApp("loop", FLOW, "auto", {}, devices)
    places, killer = PlatformPlaces(tmp_path), _Killer(tmp_path, app.instance)
    config = {
        "broker": broker_kind,
        "spark": {"rows_max": 300},
        "local": {"commit": {"records_max": 60}, "uplink": {"resend_ms": 500, "backoff_ms_max": 1_000}},
    }
    run_to_the_end([app], tmp_path, config, killer)
    assert killer.killed == ["broker", "down", "agent tank-1", "broker", "agent tank-22", "down"]
    for device in DEVICES:
        written = (places.agent(device, app.instance) / "valve.jsonl").read_text()
        lines = [json.loads(line) for line in written.splitlines()]
        plain = [{k: v for k, v in line.items() if k[0] != "_"} for line in lines]
        assert plain == commands(device, records), device
        assert len({line["_id"] for line in lines}) == len(lines)
        counters = read_report(agent_status(places, device, app.instance))["counters"]
        assert counters["rows_down.command_down"] == len(lines)
        assert counters["down_epochs"] == 1
    tables = tables_of(places, app.instance)
    table = [(row["tank"], row["window_start"], row["level_m"]) for row in rows(tables, "minutes")]
    assert table == [(device, *minute) for device in DEVICES for minute in minutes(device, records)]
    assert rows(tables, "dead_letters") == []


class _Killer:
    """Kills one process after the other, as commands arrive."""

    def __init__(self, folder: Path, instance: str) -> None:
        self._places, self._instance = PlatformPlaces(folder), instance
        self.killed: list[str] = []

    def __call__(self) -> None:
        arrived = sum(path.read_bytes().count(b"\n") for path in self._places.agents.glob("*/*/valve.jsonl"))
        order = ["broker", "down", "agent tank-1", "broker", "agent tank-22", "down"]
        if len(self.killed) < len(order) and arrived >= 1 + 4 * len(self.killed):
            name = order[len(self.killed)]
            every = (one for one in processes(self._places) if one.startswith("down"))
            called = next(every, name) if name == "down" else name
            pid = pid_of(self._places, called, self._instance)
            if pid is not None and is_running(pid):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(name)
