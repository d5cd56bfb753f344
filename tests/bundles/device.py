"""A device as a process with a folder of its own, a platform's end for it, and a broker between.

The device shares no import path with the tests: the flow's package is in the bundle alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.control.codec import decode_reported, encode_state
from geartrain.control.sender import DesiredSender, SenderPolicy, Standing, Store
from geartrain.control.states import App, AppReport, AppState, Reported, State
from geartrain.wire.codec import decode_envelope, decode_header, encode_control
from geartrain.wire.digest import FIRST_DIGEST
from geartrain.wire.envelope import Ack, BatchKind, Welcome
from geartrain.wire.topics import ack_topic, desired_topic, parse_up, reported_topic
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_cloud.certs.fleet import Fleet
from geartrain_edge.identity import Term, identity_text
from tests.bundles.trust import PlatformServer, Repository
from tests.bundles.versions import bundle
from tests.waiting import WAIT_S

DEVICE, INSTANCE, FLOW = "truck-1", "coldroom.1", "coldroom.flow:flow"
Story = Callable[["Platform"], Awaitable[None]]


class Platform:
    """Control's end of the lane with a store in memory, and an ingest that takes all that follows on."""

    def __init__(self, device: Device) -> None:
        self.device, self.repository = device, device.repository
        self._net = AiomqttNet(*device.address)
        self.machine = DesiredSender(DEVICE, Standing(), SenderPolicy(resend_s=0.3, ask_s=0.3))
        self.reports: list[Reported] = []
        self.serial, self.rows, self.program = 0, 0, ""
        self.acks = True
        self._places: dict[bytes, tuple[int, bytes]] = {}

    def want(self, *codes: str, instance: str = INSTANCE, number: int = 0) -> None:
        """Have the app run with this code, as its revision of this number, or have no app."""
        self.serial += 1
        apps = tuple(App(instance, FLOW, cut="edge", code=code, number=number) for code in codes)
        state = encode_state(State(self.serial, apps, program=self.program))
        self.machine.wanted(Standing(state, self.reports[-1] if self.reports else None), time.monotonic())

    def submit(self, kind: str, number: int = 0, *, has_more: bool = False) -> str:
        """Sign a version, publish it and want it, as the app's revision of this number."""
        code, archive = bundle(kind, has_more=has_more)
        self.repository.add(code, archive)
        self.repository.publish()
        self.want(code, number=number)
        return code

    @property
    def report(self) -> AppReport | None:
        """The newest of the app."""
        apps = self.reports[-1].apps if self.reports else ()
        return next((app for app in apps if app.instance == INSTANCE), None)

    @property
    def why(self) -> str:
        """What is said of the app."""
        return "" if self.report is None else self.report.why

    @property
    def state(self) -> AppState | None:
        """How the app is."""
        return None if self.report is None else self.report.state

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, and say what was heard last where it does not come."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{self.report}\n{self.device.log()}") from None

    async def until_rows(self) -> None:
        """Wait until new rows have come, so that the app goes on."""
        before = self.rows
        await self.until(lambda: self.rows > before + 5)

    async def until_runs(self, code: str) -> None:
        """Wait until this code has committed and its rows come."""
        await self.until(lambda: self.device.committed() == code and self.device.runs() == code)
        await self.until_rows()

    async def run(self) -> None:
        """Speak with the device until cancelled."""
        async with self._net.connect("platform") as connection:
            await connection.subscribe(reported_topic(DEVICE))
            await connection.subscribe("geartrain/v1/+/+/+/up")
            self.machine.connected(time.monotonic())

            async def send() -> None:
                while True:
                    while (payload := self.machine.next_to_send(time.monotonic())) is not None:
                        await connection.publish(desired_topic(DEVICE), payload)
                    await asyncio.sleep(0.02)

            sending = asyncio.create_task(send())
            try:
                async for incoming in connection.incoming():
                    if incoming.topic.endswith("/up"):
                        await self._ingest(connection, incoming.topic, incoming.payload)
                        continue
                    self.machine.receive(incoming.payload, time.monotonic())
                    while (event := self.machine.next_event()) is not None:
                        assert isinstance(event, Store), event
                        self.reports.append(decode_reported(incoming.payload))
                        self.machine.stored(event.report, time.monotonic())
            finally:
                sending.cancel()

    async def _ingest(self, connection: Any, topic: str, payload: bytes) -> None:
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        device, flow = parse_up(topic)[:2]
        answer: Welcome | Ack
        if header.kind is BatchKind.HELLO:
            answer = Welcome(header.flow, header.epoch, {}, {}, 1)
        else:
            seq, digest = self._places.get(header.epoch, (0, FIRST_DIGEST))
            if header.seq == seq + 1:
                seq, digest = self._places[header.epoch] = header.seq, envelope.digest
                self.rows += header.count if header.channel and not header.channel.startswith("_") else 0
            answer = Ack(header.flow, header.epoch, seq, digest, 1)
        if self.acks or isinstance(answer, Welcome):
            await connection.publish(ack_topic(device, flow), encode_control(answer))


class Device:
    """The folder, file and processes of one device."""

    def __init__(self, folder: Path, repository: Repository, url: str, address: str, fleet: Fleet) -> None:
        self.folder, self.repository = folder, repository
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.state = folder / "state"
        folder.mkdir()
        files, now_s = fleet.paths("device", DEVICE), time.time()
        text = identity_text(
            Term(now_s, now_s + 86_400), files.key.read_bytes(), files.certificate.read_text()
        )
        write_private(self.state / "identity" / "ca.pem", fleet.ca.read_bytes())
        write_private(self.state / "identity" / "identity.pem", text)
        self.file = folder / "device.toml"
        self.file.write_text(
            f'device = "{DEVICE}"\nstate = "state"\nbroker = "{address}"\n'
            f'platform = "{url}"\n'
            "[bundles]\ndeadline_s = 3\ntries_max = 2\nmemory_mib_max = 200\n"
        )
        self.file.chmod(0o600)
        self.parent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the parent, from its own folder and with no path of the tests."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [sys.executable, "-P", "-m", "geartrain_edge.agent.process", "--device", str(self.file)]
        with (self.folder / "parent.log").open("ab") as log:
            self.parent = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """kill -9."""
        if self.parent is not None:
            self.parent.kill()
            self.parent.wait()
            self.parent = None

    def log(self) -> str:
        """What was printed."""
        paths = [self.folder / "parent.log", self.state / INSTANCE / "agent.log"]
        return "\n".join(path.read_text()[-3_000:] for path in paths if path.exists())

    def status(self) -> dict[str, Any]:
        """What its agent says."""
        try:
            found: dict[str, Any] = json.loads((self.state / INSTANCE / "status.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found

    def runs(self) -> str:
        """The code in its agent's configuration."""
        try:
            text = (self.state / INSTANCE / "agent.toml").read_text()
        except FileNotFoundError:
            return ""
        return next((line.split('"')[1] for line in text.splitlines() if line.startswith("code")), "")

    def committed(self) -> str:
        """The code that has committed records."""
        try:
            return (self.state / INSTANCE / "committed").read_text()
        except FileNotFoundError:
            return ""

    def bundles(self) -> set[str]:
        """What is installed."""
        root = self.state / "bundles"
        return {path.name for path in root.iterdir() if len(path.name) == 64} if root.is_dir() else set()

    def tell(self, story: Story) -> None:
        """Run the story against this device."""

        async def whole() -> None:
            platform = Platform(self)
            running = asyncio.create_task(platform.run())
            try:
                await story(platform)
            finally:
                running.cancel()
                done = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError), done

        asyncio.run(whole())


@contextmanager
def device_world(folder: Path, broker_kind: Any) -> Iterator[Device]:
    """A broker, a platform's server and a device that has joined; nothing of it is left afterwards."""
    fleet = Fleet(folder / "fleet")
    fleet.init("test")
    fleet.issue("server", "127.0.0.1")
    fleet.issue("device", DEVICE)
    broker = choose_broker(broker_kind, folder)
    process = subprocess.Popen(broker.command)
    repository = Repository()
    own = fleet.paths("server", "127.0.0.1")
    server = PlatformServer(repository, fleet.ca, own.certificate, own.key)
    device = None
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        device = Device(folder / "device", repository, server.url, broker.address, fleet)
        yield device
    finally:
        if device is not None and device.parent is not None:
            device.parent.send_signal(signal.SIGTERM)
            try:
                device.parent.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                device.kill()
        server.close()
        process.terminate()
        process.wait(timeout=WAIT_S)
