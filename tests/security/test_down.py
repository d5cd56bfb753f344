"""The way down over mutual TLS: the real sender, ingest and agents, with a fleet's configuration.

The part of Spark is played by the test, which writes the outbox as a driver does.
"""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.toml_text import to_toml
from geartrain.records.event_time import END_OF_TIME, from_datetime
from geartrain.wire.topics import flow_down_topic
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.certs import CLOUD, DEVICE
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.supervisor.child import ChildSpec
from geartrain_cloud.supervisor.supervise import Supervisor
from geartrain_examples.control_loop.flow import command
from tests.down.parts import Finished, Parts
from tests.down.test_processes import Playing, minute
from tests.security.fleet import Secured, secured
from tests.waiting import Wait

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

DEVICES = ("tank-1", "tank-22")
MINUTES = 8


def show(config: Path, table: dict[str, object]) -> None:
    """Let the program of this file show another certificate."""
    config.write_text(to_toml(tomllib.loads(config.read_text()) | {"broker": table}))


def until(holds: Callable[[], bool], supervisor: Supervisor) -> None:
    wait = Wait("what the parts come to")
    while not holds():
        wait.check({n: c.state for n, c in supervisor.children.items()})
        supervisor.check()
        time.sleep(0.05)


def lines(parts: Parts, device: str) -> list[dict[str, Any]]:
    path = parts.agent_folder(device) / "valve.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def forge(broker: Secured, payload: bytes) -> None:
    """Give an order in the name of the cloud, as another device and as ingest."""
    for kind, name in ((DEVICE, "tank-22"), (CLOUD, "ingest")):
        async with broker.net(kind, name).connect("forger") as connection:
            await connection.publish(flow_down_topic("tank-1", "control_loop"), payload)
            await connection.drain()


def configured(broker: Secured, parts: Parts) -> dict[str, ChildSpec]:
    """The programs, each with its own certificate but the sender, which shows that of ingest."""
    for device in DEVICES:
        broker.fleet.issue(DEVICE, device)
    choice = choose_broker(broker.address, parts.folder, broker.fleet.folder)
    specs = {spec.name: spec for spec in parts.specs(choice)}
    show(parts.down, broker.table(CLOUD, "ingest"))
    return specs


def test_orders_arrive_once_from_the_sender_alone(tmp_path: Path) -> None:
    with secured(tmp_path / "fleet") as broker, Supervisor(tmp_path) as supervisor:
        parts = Parts(
            "geartrain_examples.control_loop.flow:flow",
            {device: {"levels": {"records": 100}} for device in DEVICES},
            tmp_path,
            {"uplink": {"resend_ms": 500, "backoff_ms_max": 500}},
        )
        specs = configured(broker, parts)
        others = [spec for name, spec in specs.items() if name != "down"]
        supervisor.follow(others)
        driver = Playing(parts)
        for number in range(MINUTES):
            rows = [minute(device, number) for device in DEVICES]
            driver.write(rows, from_datetime(rows[0].window_start))
        driver.write([], END_OF_TIME)

        status = parts.places.downlink_status

        def waiting() -> dict[str, int]:
            found: dict[str, int] = read_report(status)["flows"][parts.plan().graph.name]["waiting"]
            return found

        with Supervisor(tmp_path / "wrong") as wrong:
            wrong.follow([specs["down"]])
            until(lambda: read_report(status).get("connected") is True, wrong)
            time.sleep(2)
            asyncio.run(forge(broker, b"not even an order"))
            assert all(waiting()[device] for device in DEVICES)  # ingest sends no orders
            assert [lines(parts, device) for device in DEVICES] == [[], []]

        show(parts.down, broker.table(CLOUD, "down"))
        supervisor.follow([*others, specs["down"]])
        until(Finished(parts), supervisor)
        driver.outbox.close()
    for device in DEVICES:
        want = [command(minute(device, number)) for number in range(MINUTES)]
        assert [(one["tank"], one["open_percent"]) for one in lines(parts, device)] == [
            (one.tank, one.open_percent) for one in want
        ]
        counters = parts.status(device)["counters"]
        assert counters["deliveries.valve"] == MINUTES
        assert counters.get("down_rows_lost", 0) == 0
