"""Whom a real broker does not accept says why and comes back; a restart of the broker denies nobody."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.connecting import Connector
from geartrain.errors import DeniedError, NetError
from geartrain.ports import Net
from geartrain.wire.topics import ack_topic
from geartrain_cloud.certs import DEVICE
from geartrain_edge.parent.lane import BACKOFF
from tests.ports import free_port
from tests.security.fleet import Secured, secured, start, stop
from tests.waiting import in_time

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

CLIENTS, RESTARTS = 20, 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path) as found:
        yield found


class Client:
    """Keeps a connection as a device does. `errors`: why the former ones ended."""

    def __init__(self, net: Net, device: str) -> None:
        self._net, self._device = net, device
        self.connector = Connector(SystemClock(), SystemRandomness(), BACKOFF)
        self.errors: list[NetError] = []
        self.connected = asyncio.Event()
        self.task = asyncio.create_task(self.connector.stay(self._session, self.errors.append))

    async def _session(self) -> None:
        try:
            async with self._net.connect("client") as connection:
                await connection.subscribe(ack_topic(self._device, "stocks"))
                self.connector.is_connected = True
                self.connected.set()
                async for _ in connection.incoming():
                    pass
        finally:
            self.connected.clear()


def test_a_restart_of_the_broker_denies_none_of_its_clients(broker: Secured) -> None:
    async def story() -> list[NetError]:
        clients = [Client(broker.net(DEVICE, f"d{1 + number % 2}"), "d1") for number in range(CLIENTS)]
        for _ in range(RESTARTS):
            for client in clients:
                await client.connected.wait()
                client.connected.clear()  # who has yet to hear of the restart is not connected again
            await asyncio.to_thread(broker.reload)
        for client in clients:
            await client.connected.wait()
            client.task.cancel()
        await asyncio.gather(*(client.task for client in clients), return_exceptions=True)
        return [error for client in clients for error in client.errors]

    errors = asyncio.run(in_time("clients that outlive restarts of the broker", story()))
    assert len(errors) >= CLIENTS * RESTARTS
    assert [str(error) for error in errors if isinstance(error, DeniedError)] == []


def passwords(folder: Path, **known: str) -> None:
    """mosquitto's file of passwords."""
    lines = []
    for user, password in known.items():
        salt, turns = b"salt" * 3, 101
        hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, turns)
        parts = [str(turns), base64.b64encode(salt).decode(), base64.b64encode(hashed).decode()]
        lines.append(f"{user}:$7${'$'.join(parts)}\n")
    (folder / "passwords").write_text("".join(lines))
    (folder / "passwords").chmod(0o600)


def test_a_device_whose_password_is_put_right_comes_back(tmp_path: Path) -> None:
    port = free_port()
    passwords(tmp_path, d1="another")
    lines = (f"listener {port} 127.0.0.1", "allow_anonymous false", f"password_file {tmp_path}/passwords")
    (tmp_path / "mosquitto.conf").write_text("\n".join((*lines, "user root", "")))
    process = start(tmp_path, port)

    async def story() -> None:
        nonlocal process
        client = Client(AiomqttNet("127.0.0.1", port, username="d1", password="right"), "d1")
        while len(client.errors) < 2:  # noqa: ASYNC110 - it tries again by itself
            await asyncio.sleep(0.05)
        assert all(isinstance(error, DeniedError) for error in client.errors)
        assert "put its user, its password" in client.connector.denied
        stop(process)
        passwords(tmp_path, d1="right")
        process = start(tmp_path, port)
        await client.connected.wait()
        assert client.connector.denied == ""
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)

    try:
        asyncio.run(in_time("a device that comes back with its password", story()))
    finally:
        stop(process)


def test_a_device_whose_certificate_is_revoked_comes_back_with_a_new_one(broker: Secured) -> None:
    async def story() -> None:
        client = Client(broker.net(DEVICE, "d1"), "d1")
        await client.connected.wait()
        await asyncio.to_thread(revoke, broker, "d1")
        while not client.connector.denied:  # noqa: ASYNC110 - it tries again by itself
            await asyncio.sleep(0.05)
        assert "(certificate revoked): see whether it is still good" in client.connector.denied
        broker.fleet.issue(DEVICE, "d1", renew=True)
        await client.connected.wait()
        assert client.connector.denied == ""
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)

    asyncio.run(in_time("a device that comes back with its certificate", story()))


def revoke(broker: Secured, device: str) -> None:
    """Revoke a certificate that its device still has, and start the broker anew with the list."""
    paths = broker.fleet.paths(DEVICE, device)
    held = {path: path.read_bytes() for path in (paths.certificate, paths.key)}
    broker.fleet.revoke(DEVICE, device)
    for path, content in held.items():
        path.write_bytes(content)
        path.chmod(0o600)
    broker.reload()
