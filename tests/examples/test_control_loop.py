"""The control loop: each tank gets its own commands, once, also when the broker and others are killed."""

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
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.supervisor.deployment import Deployment, Places, read_status
from geartrain_cloud.supervisor.progress import Hops
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.whole_run import run_to_the_end
from geartrain_examples.control_loop.flow import LIMIT_M, Tank

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


@pytest.mark.slow
@pytest.mark.spark
def test_every_command_arrives_once_while_broker_sender_and_agents_are_killed(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    records = 2_000
    deployment = Deployment(
        FLOW,
        "auto",
        {},
        {device: {"levels": {"records": records, "speed": 60}} for device in DEVICES},
        agent={"commit": {"records_max": 60}, "uplink": {"resend_ms": 500, "backoff_ms_max": 1_000}},
        driver={"rows_max": 300},
    )
    places, killer = Places(tmp_path), _Killer(tmp_path)
    with StopSignal() as stop:
        run_to_the_end(deployment, places, broker_kind, stop, killer)
    assert killer.killed == ["broker", "down", "agent tank-1", "broker", "agent tank-22", "down"]
    for device in DEVICES:
        lines = [json.loads(line) for line in (places.agent(device) / "valve.jsonl").read_text().splitlines()]
        plain = [{k: v for k, v in line.items() if k[0] != "_"} for line in lines]
        assert plain == commands(device, records), device
        assert len({line["_id"] for line in lines}) == len(lines)
        counters = read_status(places.agent_status(device))["counters"]
        assert counters["rows_down.command_down"] == len(lines)
        assert counters["down_epochs"] == 1
    table = [(row["tank"], row["window_start"], row["level_m"]) for row in rows(places.tables, "minutes")]
    assert table == [(device, *minute) for device in DEVICES for minute in minutes(device, records)]
    assert rows(places.tables, "dead_letters") == []


class _Killer:
    """Kills one process after the other, as commands arrive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.killed: list[str] = []

    def __call__(self, hops: Hops, happened: list[str]) -> None:
        arrived = sum(
            path.read_bytes().count(b"\n") for path in (self._folder / "agents").glob("*/valve.jsonl")
        )
        order = ["broker", "down", "agent tank-1", "broker", "agent tank-22", "down"]
        if len(self.killed) < len(order) and arrived >= 1 + 4 * len(self.killed):
            name = order[len(self.killed)]
            process = read_status(self._folder / "processes.json").get(name, {})
            if process.get("state") == "running":
                os.kill(process["pid"], signal.SIGKILL)
                self.killed.append(name)
