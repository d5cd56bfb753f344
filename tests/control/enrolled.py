"""An open platform's enrolment behind a real HTTPS listener, and devices with keys of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from geartrain_cloud.control.device_listener import (
    DeviceRoute,
    caller,
    device_context,
    join_routes,
    listen_for_devices,
    make_device_app,
)
from geartrain_cloud.control.enrolment import Enrolment
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import FleetSection, PlatformConfig
from geartrain_cloud.rest.answering import handler_of
from tests.ports import free_port
from tests.waiting import WAIT_S

DAY_S = 86_400.0


class Key:
    """A key of a device, and its signing request."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())

    @property
    def request(self) -> str:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cloud:ingest")])
        made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass
class World:
    folder: Path
    config: PlatformConfig
    store: ControlStore
    enrolment: Enrolment
    clock: list[int]
    port: int

    async def ask(
        self, method: str, path: str, body: Any = None, identity: Path | None = None
    ) -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(self._ask, method, path, body, identity)

    def _ask(
        self, method: str, path: str, body: Any = None, identity: Path | None = None
    ) -> tuple[int, dict[str, Any]]:
        context = ssl.create_default_context(cafile=str(self.enrolment.fleet.ca))
        if identity is not None:
            context.load_cert_chain(identity)
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=WAIT_S, context=context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    async def refused(self, method: str, path: str, body: Any = None, identity: Path | None = None) -> str:
        status, found = await self.ask(method, path, body, identity)
        assert status in (400, 403, 404, 405, 413), found
        return str(found["error"]["sentence"])

    async def join(self, key: Key, name: str = "truck-1") -> Path:
        token = self.enrolment.invite(name, DAY_S)["token"]
        status, found = await self.ask("POST", "/v1/join", {"token": token, "request": key.request})
        assert status == 200, found
        return self.keep(key, found["certificate"])

    def keep(self, key: Key, certificate: str) -> Path:
        path = self.folder / f"{x509.load_pem_x509_certificate(certificate.encode()).serial_number:x}.pem"
        path.write_bytes(key.pem + certificate.encode())
        return path


@asynccontextmanager
async def opened(folder: Path, fleet: FleetSection | None = None) -> AsyncIterator[World]:
    fleet = fleet or FleetSection(address="localhost", device_port=free_port())
    config = PlatformConfig(folder, fleet=fleet)
    clock = [0]

    def now_us() -> int:
        return time.time_ns() // 1_000 + clock[0]

    async def who(request: web.Request) -> Answer:
        return 200, {"device": caller(request)}

    store = ControlStore(folder / "control.sqlite", now_us)
    enrolment = Enrolment(config, store.devices, now_us)
    app = make_device_app(
        [*join_routes(enrolment), DeviceRoute("GET", "/who", handler_of(who))], enrolment.check
    )
    context, port = device_context(enrolment.fleet, "localhost"), config.fleet.device_port
    runner = await listen_for_devices(app, context, "localhost", port)
    try:
        yield World(folder, config, store, enrolment, clock, port)
    finally:
        await runner.cleanup()
        enrolment.close()
        store.close()
