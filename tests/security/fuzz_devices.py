"""Requests to the device listener, as bytes on a connection: to join, to renew, for metadata and for bundles.

One of the readers of `tests.security.fuzz`. The server, its parser, enrolment and what is served are the real
ones; only the socket and TLS are in memory. A third of the requests come from a device with a good
certificate, a third with a bad one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from aiohttp import web_fileresponse
from cryptography import x509

from geartrain_cloud.bundles.files import BundleFiles
from geartrain_cloud.control.device_listener import DeviceRoute, join_routes, make_device_app
from geartrain_cloud.control.enrolment import Enrolment
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.platform.config import FleetSection, PlatformConfig
from geartrain_cloud.rest.answering import error_form
from tests.control.enrolled import DAY_S, Key
from tests.security.fuzz_page import TURNS_MAX, Failures, Wire
from tests.security.measured import Memory, Outcome, fast_folder, run_inline
from tests.security.spoil import SEED, spoiled
from tests.security.spoil import requests as http

_REST = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
_ARCHIVE = f"{'1' * 64}.{'2' * 64}.zip"
_READ = ("/v1/authority", "/v1/trust/1.root.json", "/v1/trust/timestamp.json", f"/v1/bundles/{_ARCHIVE}")
_ASKED = (*("/v1/join", "/v1/renew"), "/v1/trust/../trust/1.root.json", "/v1/bundles/%2e%2e")


class _Tls(Wire):
    """A connection of one who has shown this certificate, as `ssl` names it, or none."""

    def __init__(self, shown: dict[str, Any] | None) -> None:
        super().__init__()
        self._extra = {"peercert": shown}


def device_requests(numbers: range) -> Outcome:
    """Requests to the listener."""
    with fast_folder() as folder:
        return run_inline(_requests(numbers, Path(folder)))


async def _requests(numbers: range, folder: Path) -> Outcome:
    web_fileresponse.NOSENDFILE = True  # type: ignore[misc] # no socket to send to
    failures, key = Failures(), Key()
    logging.getLogger("geartrain").addHandler(failures)
    fleet = FleetSection(address="localhost", device_port=8443)
    store = ControlStore(folder / "control.sqlite", lambda: time.time_ns() // 1_000)
    enrolment = Enrolment(PlatformConfig(folder, fleet=fleet), store.devices, lambda: time.time_ns() // 1_000)
    for part in ("metadata", "targets"):
        (folder / "bundles" / part).mkdir(parents=True)
    for name in ("1.root.json", "timestamp.json"):
        (folder / "bundles" / "metadata" / name).write_bytes(b"{}")
    trust = Trust(folder / "bundles", store)
    served = BundleFiles(folder / "bundles").served_bundle(_ARCHIVE)
    assert served is not None
    served.write_bytes(bytes(10_000))
    store.devices.add("truck-1", {})
    token = enrolment.invite("truck-1", DAY_S)["token"]
    made = x509.load_pem_x509_certificate(enrolment.join(token, key.request.encode())["certificate"].encode())
    bodies = [msgspec.json.encode({"request": key.request})]
    bodies.append(msgspec.json.encode({"token": token, "request": key.request}))
    routes = [DeviceRoute("GET", path, answer) for path, answer in trust.served()]
    runner = PageRunner(make_device_app([*join_routes(enrolment), *routes], enrolment.check), error_form)
    await runner.setup()
    memory, refused = Memory(numbers), 0
    try:
        for number in numbers:
            memory.look(number)
            rng = Random(SEED + number)
            data, shown = _request(rng, bodies), _shown(rng, made.serial_number)
            status = await _ask(runner.server, data, shown)
            if status >= 500 or any("Traceback" in said for said in failures.said):
                raise AssertionError(f"input {number}: {status} answers {data!r}: {failures.said}")
            failures.said.clear()
            refused += status != 200
    finally:
        await runner.cleanup()
        logging.getLogger("geartrain").removeHandler(failures)
        enrolment.close()
        store.close()
    return Outcome("device_requests", len(numbers) - refused, refused, memory.growth_bytes())


def _request(rng: Random, bodies: list[bytes]) -> bytes:
    """A request: one of good form whose body or path is spoiled, or one whose form is."""
    reads = [b"GET " + path.encode() + _REST for path in _READ]
    way = rng.randrange(4)
    if way == 0:
        return rng.choice(reads)
    if way == 1:
        return http(rng, reads)
    path = rng.choice((*_READ, *_ASKED, *_ASKED))
    body = spoiled(rng, bodies)
    method = rng.choice(("POST", "POST", "POST", "GET", "PUT"))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _shown(rng: Random, serial: int) -> dict[str, Any] | None:
    """What `ssl` says of the certificate that was shown."""
    way = rng.randrange(3)
    if way == 0:
        return None
    name = "truck-1" if way == 1 else rng.choice(("truck-2", "cloud:ingest", "", "a/b", "ü" * 300))
    number = serial if rng.random() < 0.9 else serial + 1
    return {"subject": ((("commonName", name),),), "serialNumber": f"{number:X}"}


async def _ask(server: Any, data: bytes, shown: dict[str, Any] | None) -> int:
    """The first status that is answered; 0 where the connection is closed, or more is waited for."""
    protocol, wire = server(), _Tls(shown)
    protocol.connection_made(wire)
    protocol.data_received(data)
    for _ in range(TURNS_MAX):
        if b"\r\n" in wire.written or wire.closed:
            break
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    words = bytes(wire.written).partition(b"\r\n")[0].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
