"""A device's real parent and agents, and the platform's end of the lane in the test."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.control.codec import decode_reported, encode_state
from geartrain.control.sender import DesiredSender, SenderPolicy, Standing, Store
from geartrain.control.states import App, AppState, Reported, State
from geartrain.wire.topics import desired_topic, reported_topic
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
FLOW = "geartrain_examples.stocks.flow:flow"


class Platform:
    """The platform's end for one device, on the real machine and a real broker, with a store in memory."""

    def __init__(self, address: tuple[str, int], device: str) -> None:
        self._net, self._device = AiomqttNet(*address), device
        self.machine = DesiredSender(device, Standing(), SenderPolicy(resend_s=0.3, ask_s=0.3))
        self.report: Reported | None = None
        self.serial = 0

    def want(self, *apps: App, purged: Sequence[str] = ()) -> int:
        self.serial += 1
        state = encode_state(State(self.serial, apps, tuple(purged)))
        self.machine.wanted(Standing(state, self.report), time.monotonic())
        return self.serial

    async def run(self) -> None:
        async with self._net.connect("platform") as connection:
            await connection.subscribe(reported_topic(self._device))
            self.machine.connected(time.monotonic())

            async def send() -> None:
                while True:
                    while (payload := self.machine.next_to_send(time.monotonic())) is not None:
                        await connection.publish(desired_topic(self._device), payload)
                    await asyncio.sleep(0.02)

            sending = asyncio.create_task(send())
            try:
                async for incoming in connection.incoming():
                    self.machine.receive(incoming.payload, time.monotonic())
                    while (event := self.machine.next_event()) is not None:
                        assert isinstance(event, Store)
                        self.report = decode_reported(incoming.payload)
                        self.machine.stored(event.report, time.monotonic())
            finally:
                sending.cancel()

    def state(self, instance: str) -> AppState | None:
        apps = () if self.report is None else self.report.apps
        return next((app.state for app in apps if app.instance == instance), None)

    def why(self, instance: str) -> str:
        assert self.report is not None
        return next(app.why for app in self.report.apps if app.instance == instance)

    def lacks(self, instance: str) -> tuple[str, ...]:
        apps = () if self.report is None else self.report.apps
        return next((app.lacks for app in apps if app.instance == instance), ())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(0.02)


class Device:
    """A broker, a device's file and its parent process."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.state = folder, folder / "state"
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        prices = folder / "prices.csv"
        days = [f"A,2020-01-01T00:{n // 60 % 60:02d}:{n % 60:02d},{n + 1}\n" for n in range(500)]
        prices.write_text("symbol,date,price\n" + "".join(days))
        self.file = folder / "device.toml"
        self.file.write_text(
            f'device = "truck-1"\nstate = "state"\nbroker = "{address}"\n[labels]\nkind = "truck"\n'
            '[apps.stocks.sources.quotes]\npath = "prices.csv"\n'
        )
        self.parents: list[subprocess.Popen[str]] = []

    def start(self, environment: Mapping[str, str] = os.environ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "geartrain_edge.agent.process", "--device", str(self.file)]
        parent = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
        self.parents.append(parent)
        return parent

    def status(self, instance: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.state / instance / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def run(self, story: Callable[[Platform], Any]) -> None:
        async def whole() -> None:
            platform = Platform(self.address, "truck-1")
            running = asyncio.create_task(platform.run())
            try:
                await story(platform)
            finally:
                running.cancel()
            assert (await asyncio.gather(running, return_exceptions=True))[
                0
            ].__class__ is asyncio.CancelledError

        asyncio.run(whole())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def app(instance: str, **parts: Any) -> App:
    return App(instance, FLOW, cut="cloud", **parts)
