"""One serial port, two apps and a real parent: the kernel keeps the apps apart, and both hear the port."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.control.states import App, AppState
from geartrain.wire.codec import encode_control
from geartrain.wire.topics import ack_topic, parse_up, up_filter
from geartrain_edge.agent.config import read_config
from tests.devices.test_sharing import Talker
from tests.edge.conftest import device  # noqa: F401 - the fixture
from tests.edge.device_parent import Device, Platform
from tests.edge.network import NaiveIngest
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

APPS = {"scale.1": "serial", "till.1": "weights"}
OPTIONS = """isolation = {isolation}
[spool]
policy = "drop_oldest"
[commit]
records_max = 20
[uplink]
resend_ms = 300
backoff_ms_max = 500
[apps.scale.sources.lines]
port = "{port}"
baud = 19200
[apps.till.sources.lines]
port = "{port}"
baud = 19200
"""


class Heard:
    """What arrives of both apps; each is taken by a plain ingest that acks."""

    def __init__(self, state: Path) -> None:
        self._state, self._ingests = state, dict[str, NaiveIngest]()

    async def run(self, address: tuple[str, int]) -> None:
        async with AiomqttNet(*address).connect("ingest") as connection:
            await connection.subscribe(up_filter())
            async for incoming in connection.incoming():
                name, instance = parse_up(incoming.topic)[:2]
                if instance not in self._ingests:
                    plan = read_config(str(self._state / instance / "agent.toml")).plan()
                    self._ingests[instance] = NaiveIngest(plan)
                for control in self._ingests[instance].take(incoming.payload):
                    await connection.publish(ack_topic(name, instance), encode_control(control))

    def lines(self, instance: str) -> list[int]:
        ingest = self._ingests.get(instance)
        return [] if ingest is None else [int(row[0].line) for row in ingest.sorted_rows()["lines"]]


def test_two_apps_of_one_parent_read_one_port_and_the_owner_may_die(device: Device) -> None:  # noqa: F811
    talker, heard = Talker(), Heard(device.state)
    text = device.file.read_text().partition("[labels]")[0]
    device.file.write_text(text + OPTIONS.format(isolation="true", port=talker.port))

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(0.02)

    async def both_hear() -> None:
        """Each line once at each, for a while in which both live."""
        begin = talker.said
        await until(lambda: min(max(heard.lines(name), default=-1) for name in APPS) >= begin)
        first = max(max(heard.lines(name)) for name in APPS)
        await until(lambda: min(max(heard.lines(name)) for name in APPS) >= first + 50)
        for name in APPS:
            found = heard.lines(name)
            assert found == sorted(set(found)), name
            assert [n for n in found if first <= n <= first + 50] == [*range(first, first + 51)], name

    async def story(platform: Platform) -> None:
        beside = [asyncio.create_task(talker.talk()), asyncio.create_task(heard.run(device.address))]
        try:
            flows = {name: f"tests.devices.lines_flow:{flow}" for name, flow in APPS.items()}
            platform.want(App("scale.1", flows["scale.1"], cut="cloud"))
            device.start()
            await until(lambda: heard.lines("scale.1"))  # it has opened the port
            platform.want(*(App(name, flow, cut="cloud") for name, flow in flows.items()))
            await both_hear()
            before = {name: device.status(name)["pid"] for name in APPS}
            os.kill(before["scale.1"], signal.SIGKILL)
            await until(lambda: device.status("scale.1").get("pid") not in (None, before["scale.1"]))
            await both_hear()
            assert device.status("till.1")["pid"] == before["till.1"]  # which has the port now
            await until(lambda: {platform.state(name) for name in APPS} == {AppState.RUNNING})
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    device.run(story)
