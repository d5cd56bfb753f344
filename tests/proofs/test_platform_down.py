"""Apps of a platform that send to devices: what each device was given is what plain Python computes.

Real processes: gear up with broker, ingest, the Spark host and the sender, and the agents of two devices.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests.control.platform_client import Client, client_of
from tests.examples.test_control_loop import FLOW, commands, minutes
from tests.proofs.test_platform import gear, kill, until, until_ended
from tests.supervisor.test_up import is_alive, pids, platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

DEVICES = ("tank-1", "tank-22")
RECORDS, SPEED = 600, 20
INSTANCES = ("control_loop.1", "again.1")


def given(state: Path, device: str, instance: str) -> list[dict[str, Any]]:
    """What the valve of a device was given, in order."""
    path = PlatformPlaces(state).agent(device, instance) / "valve.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plain(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines as the flow made them."""
    return [{name: value for name, value in line.items() if name[0] != "_"} for line in lines]


def check(state: Path, client: Client, instance: str) -> None:
    """Compare what devices were given, and the table, with plain Python."""
    for device in DEVICES:
        lines = given(state, device, instance)
        assert plain(lines) == commands(device, RECORDS), device
        assert len({line["_id"] for line in lines}) == len(lines)
    page = client.get(f"/apps/{instance.rpartition('.')[0]}/tables/minutes")
    assert [tuple(row) for row in page["rows"]] == [
        (device, *minute) for device in DEVICES for minute in minutes(device, RECORDS)
    ]


def submit(state: Path, name: str) -> None:
    own = [f"--set=levels.{key}={value}" for key, value in (("records", RECORDS), ("speed", SPEED))]
    gear(state, "submit", FLOW, "--name", name, "--devices", "all", "--no-wait", *own)


def test_devices_get_their_commands_once_though_the_downlink_and_all_are_killed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    places = PlatformPlaces(state)
    with platform(state) as process:
        client_of(state)
        for device in DEVICES:
            gear(state, "device", "add", device, "--local")
        until(lambda: read_report(places.spark_status), "the Spark host")
        submit(state, "control_loop")

        def arrived(instance: str) -> int:
            return min(len(given(state, device, instance)) for device in DEVICES)

        until(lambda: arrived("control_loop.1"), "the first commands")
        submit(state, "again")  # it comes while the other is sent
        running = pids(state)
        process.kill()
        process.wait()
        until(lambda: not any(is_alive(pid) for pid in running.values()), "the end of all")
    with platform(state):
        client = client_of(state)
        for instance in INSTANCES:
            until(partial(arrived, instance), f"the first commands of {instance}")
            kill(state, "downlink")
        for instance in INSTANCES:
            until_ended(client, instance.rpartition(".")[0])
            check(state, client, instance)
        until(lambda: read_report(places.downlink_status).get("flows") == {}, "the end of the outboxes")
        gear(state, "kill", "control_loop", "--purge")
        assert not places.app("control_loop.1").exists()
        assert places.outbox("again.1").exists()
