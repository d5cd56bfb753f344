"""The way down through real processes and mosquitto, each of which is killed in mid-run.

The part of Spark is played by the test, which writes the outbox as a driver does; with Spark the same is in
tests/examples/test_control_loop.py.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from geartrain.adapters.system import SystemRandomness
from geartrain.operators.deal import Deal
from geartrain.records.event_time import END_OF_TIME, from_datetime
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_cloud.downlink.writer import DownChannel, OutboxWriter
from geartrain_cloud.supervisor.child import ChildSpec
from geartrain_cloud.supervisor.supervise import Supervisor
from geartrain_examples.control_loop.flow import Minute, command
from tests.down.parts import Finished, Parts
from tests.waiting import WAIT_S, Wait

pytestmark = pytest.mark.slow

DEVICES = ("tank-1", "tank-22")
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = 60
KILLS = {10: "broker", 18: "down", 26: "agent tank-1", 34: "broker", 42: "agent tank-22", 50: "broker"}
"""Who is killed once so many micro-batches have been written, whether they have arrived or not."""


def minute(device: str, number: int) -> Minute:
    return Minute(device, START + timedelta(minutes=number), 6.0 + number / 100)


def columns(minutes: Sequence[Minute]) -> ColumnBatch:
    times = [from_datetime(m.window_start) + 59_999_999 for m in minutes]
    return ColumnBatch(
        RowCodec(Minute).to_columns(minutes), times, ["means"] * len(minutes), [0] * len(minutes), None
    )


class Playing:
    """The driver's part: one micro-batch a call."""

    def __init__(self, parts: Parts) -> None:
        plan = parts.plan()
        (channel,) = plan.down
        deal = plan.graph[channel.id].operator
        assert isinstance(deal, Deal)
        self._sink, self._clock, self._next = channel.id, 0, 0
        channels = {channel.id: DownChannel(deal, RowCodec(channel.kind), "keyed", is_timed=False)}
        chance = SystemRandomness()
        self.outbox = OutboxWriter(
            parts.outbox, plan.graph.name, channels, lambda: DEVICES, lambda query, ends: self._clock, chance
        )
        self.outbox.attach("keyed", "checkpoint", has_run=False)

    def write(self, rows: Sequence[Minute], clock_us: int) -> None:
        self._clock = clock_us
        self.outbox.write("keyed", self._next, {}, {self._sink: [columns(rows)]} if rows else {})
        self._next += 1


def test_each_command_is_in_the_devices_file_once_though_all_are_killed(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    agent = {"uplink": {"resend_ms": 500, "backoff_ms_max": 500}}
    devices = {device: {"levels": {"records": 100}} for device in DEVICES}
    parts = Parts("geartrain_examples.control_loop.flow:flow", devices, tmp_path, agent)
    killed = list[str]()
    broker = choose_broker(broker_kind, tmp_path / "broker")
    with Supervisor(tmp_path) as supervisor:
        guarded = broker.kind == "mosquitto"
        mqtt = ChildSpec("broker", broker.command, tmp_path / "broker.log", guarded=guarded)
        supervisor.follow([mqtt])
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S, gone=lambda: None)
        supervisor.follow([mqtt, *parts.specs(broker)])
        driver = Playing(parts)
        for number in range(MINUTES):
            rows = [minute(device, number) for device in DEVICES]
            driver.write(rows, from_datetime(rows[0].window_start))
            supervisor.check()
            if number in KILLS:
                _kill(supervisor, KILLS[number], killed)
            time.sleep(0.1)
        driver.write([], END_OF_TIME)
        _wait(supervisor, Finished(parts))
        driver.outbox.close()
    assert killed == list(KILLS.values())
    for device in DEVICES:
        lines = _lines(parts.agent_folder(device) / "valve.jsonl")
        want = [command(minute(device, number)) for number in range(MINUTES)]
        assert [(line["tank"], line["open_percent"]) for line in lines] == [
            (one.tank, one.open_percent) for one in want
        ]
        assert len({line["_id"] for line in lines}) == MINUTES
        counters = parts.status(device)["counters"]
        assert counters["deliveries.valve"] == MINUTES
        assert counters["down_epochs"] == 1
        assert counters.get("down_rows_lost", 0) == 0


def _kill(supervisor: Supervisor, name: str, killed: list[str]) -> None:
    wait = Wait("a process to come up")
    while supervisor.children[name].pid is None:
        wait.check(f"{name} does not come up")
        supervisor.check()
        time.sleep(0.05)
    pid = supervisor.children[name].pid
    assert pid is not None
    # mosquitto stands behind a guard, which ends with it.
    os.killpg(pid, signal.SIGKILL)
    killed.append(name)


def _wait(supervisor: Supervisor, are_finished: Finished) -> None:
    wait = Wait("what the parts come to")
    while not are_finished():
        wait.check({n: c.state for n, c in supervisor.children.items()})
        supervisor.check()
        time.sleep(0.05)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
