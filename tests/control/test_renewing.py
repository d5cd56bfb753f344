"""The certificate of a platform's address: renewed in time, by itself, and shown without a restart."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from geartrain_cloud.certs import SERVER, Fleet
from geartrain_cloud.control.device_listener import device_context
from geartrain_cloud.control.renewing import LOOK_S, ServerCertificate
from geartrain_cloud.control.server import rest_context
from geartrain_cloud.pages.server import serve
from geartrain_cloud.platform.config import read_platform
from geartrain_examples.stocks.page import StockPage
from tests.ports import free_port

BEGIN = datetime.now(UTC) - timedelta(days=61)
"""So that what is renewed after 61 days is good now."""


class World:
    """A fleet whose server's certificate has 90 days, and a time that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.fleet, self.days, self.told, self.now_s = Fleet(folder), 0.0, list[Any](), 0.0
        self.fleet.init("test", now=BEGIN)
        self.fleet.issue(SERVER, "localhost", ["127.0.0.1"], days=90, now=BEGIN)
        self.one = ServerCertificate(
            self.fleet,
            "localhost",
            self.now_us,
            lambda: self.now_s,
            self.tell,
        )

    def tell(self, said: Mapping[str, Any]) -> AbstractContextManager[None]:
        self.told.append(said)
        return nullcontext()

    def now_us(self) -> int:
        return round((BEGIN + timedelta(days=self.days)).timestamp() * 1e6)

    def after(self, days: float) -> x509.Certificate:
        self.days, self.now_s = days, self.now_s + LOOK_S
        self.one.round()
        return self.certificate

    @property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.fleet.paths(SERVER, "localhost").certificate.read_bytes())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "fleet")


def test_it_is_renewed_with_a_third_of_its_life_left_for_the_same_key_and_names(world: World) -> None:
    first = world.certificate
    assert world.after(59) == first
    second = world.after(61)
    assert second.serial_number != first.serial_number
    assert second.public_key() == first.public_key()
    names = [
        one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (first, second)
    ]
    assert names[0] == names[1]
    assert second.not_valid_after_utc - first.not_valid_after_utc > timedelta(days=60)
    assert world.after(62) == second
    assert world.told == [{"what": "issued", "kind": "server", "name": "localhost"}]


def test_it_is_looked_at_once_an_hour(world: World) -> None:
    first = world.after(1)
    world.days = 80
    world.one.round()
    assert world.certificate == first


def test_one_that_lasts_as_long_as_the_authority_is_left(world: World) -> None:
    world.fleet.issue(SERVER, "localhost", days=3_650, renew=True, now=BEGIN)
    first = world.certificate
    assert world.after(3_649) == first
    assert world.told == []


def test_where_the_authoritys_key_is_elsewhere_the_log_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.certificate
    world.fleet.ca_key.unlink()
    assert world.after(70) == first
    assert "the certificate of localhost is near its end, and is not renewed" in caplog.text
    assert world.after(71) == first


def _serial_shown(port: int, ca: Path) -> int:
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("localhost", port), 60) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def test_a_page_shows_it_over_https_and_then_the_renewed_one(world: World, tmp_path: Path) -> None:
    (tmp_path / "platform.toml").write_text(
        f'[control]\ntls = true\n[fleet]\naddress = "localhost"\ndevice_port = {free_port()}\n'
    )
    context, seen = rest_context(read_platform(None, tmp_path)), list[int]()
    tables = tmp_path / "tables.sqlite"

    def announce(address: str) -> None:
        assert address.startswith("https://")
        seen.append(int(address.rstrip("/").rpartition(":")[2]))

    async def look() -> None:
        loop = asyncio.get_running_loop()
        (port,) = seen
        seen.append(await loop.run_in_executor(None, _serial_shown, port, world.fleet.ca))
        world.after(61)
        seen.append(await loop.run_in_executor(None, _serial_shown, port, world.fleet.ca))

    first = world.certificate.serial_number
    asyncio.run(serve(StockPage(), tables, announce, look, port=0, context=context))
    assert seen[1:] == [first, world.certificate.serial_number]
    assert first != world.certificate.serial_number


def test_without_tls_in_the_configuration_a_page_is_plain(tmp_path: Path) -> None:
    assert rest_context(read_platform(None, tmp_path)) is None


def test_devices_are_shown_the_renewed_one_without_a_restart(world: World) -> None:
    context = device_context(world.fleet, "localhost")
    assert _handshake(context, world.fleet.ca) == world.certificate.serial_number
    renewed = world.after(61)
    assert _handshake(context, world.fleet.ca) == renewed.serial_number
    assert context.verify_mode is ssl.CERT_OPTIONAL


def _handshake(context: ssl.SSLContext, ca: Path) -> int:
    """The serial of what a server with this context shows."""
    client = ssl.create_default_context(cafile=str(ca))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    far = context.wrap_bio(to_server, to_client, server_side=True)
    for one in (near, far, near, far, near):
        with suppress(ssl.SSLWantReadError):
            one.do_handshake()
    found = near.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number
