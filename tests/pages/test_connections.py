"""The connections of a page: one client, however many it opens, shuts nobody else out."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from geartrain_cloud.pages.connections import (
    CONNECTIONS_MAX,
    ENOUGH_OF_ADDRESS,
    OF_ADDRESS_MAX,
    TOO_SLOW,
    address_of,
)
from tests.pages.conftest import served
from tests.waiting import WAIT_S

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "


class Hello:
    """A page of one file."""

    def __init__(self, static: Path) -> None:
        self.static = static

    def answer(self, rows: object, path: object, query: object) -> tuple[int, Any]:
        return 200, "hello"


@pytest.fixture
def page(tmp_path: Path) -> Hello:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("hello")
    return Hello(tmp_path / "static")


@contextmanager
def clients(address: str, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    where = urlsplit(address)
    with ExitStack() as held:
        opened = []
        for _ in range(count):
            client = held.enter_context(
                socket.create_connection((where.hostname, where.port), timeout=WAIT_S)
            )
            with suppress(ConnectionError):  # where the page has cut it off already
                client.sendall(sent)
            opened.append(client)
        yield opened


def get(address: str, source: str) -> tuple[int, Any]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(
        where.hostname or "", where.port, timeout=WAIT_S, source_address=(source, 0)
    )
    try:
        connection.request("GET", "/api/x")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("sent", [b"", HALF], ids=["idle", "half_sent"])
def test_one_client_with_2000_connections_leaves_the_page_to_others(
    page: Hello, sent: bytes, tmp_path: Path
) -> None:
    with served(tmp_path / "no.sqlite", page) as address, clients(address, 2_000, sent):
        for _ in range(CONNECTIONS_MAX):  # more than the page takes at once: none of these is kept
            assert get(address, "127.0.0.2") == (200, "hello")


def test_address_with_enough_connections_is_told_so(page: Hello, tmp_path: Path) -> None:
    with served(tmp_path / "no.sqlite", page) as address:
        with clients(address, OF_ADDRESS_MAX):
            assert get(address, "127.0.0.1") == (429, {"error": ENOUGH_OF_ADDRESS})
            assert get(address, "127.0.0.2") == (200, "hello")
        status = 429
        while status == 429:  # the page has yet to see that they were closed
            status, _ = get(address, "127.0.0.1")
        assert status == 200


def everything(client: socket.socket) -> bytes:
    found = b""
    while more := client.recv(65_536):
        found += more
    return found


def test_headers_that_do_not_end_are_answered_and_silence_is_hung_up_on(
    page: Hello, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain_cloud.pages.connections.HEADERS_S_MAX", 0.3)
    request = b"GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as held:
        address = held.enter_context(served(tmp_path / "no.sqlite", page))
        idle = held.enter_context(clients(address, 2))
        half = held.enter_context(clients(address, 2, HALF))
        (second,) = held.enter_context(clients(address, 1, request))
        assert second.recv(12) == b"HTTP/1.1 200"
        second.sendall(HALF)
        assert [everything(one) for one in idle] == [b"", b""]
        for one in half:
            head, _, body = everything(one).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b"X-Content-Type-Options: nosniff" in head
            assert json.loads(body) == {"error": TOO_SLOW}
        assert b"HTTP/1.1 408 " in everything(second)


class Peer(asyncio.BaseTransport):
    """A transport of which only the other end's address is asked."""

    def __init__(self, peer: object) -> None:
        super().__init__({"peername": peer})


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3"),
        ("", ""),
        (None, ""),
    ],
)
def test_connections_are_counted_by_address_and_of_ipv6_by_network(peer: object, expected: str) -> None:
    assert address_of(Peer(peer)) == expected
