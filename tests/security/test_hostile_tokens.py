"""Odd tokens at each request of each server: refused in one sentence, and in no log.

The servers, their parsers and their stores are the real ones; only the socket and TLS are in memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.control.device_listener import DeviceRoute, join_routes, make_device_app
from geartrain_cloud.control.enrolment import Enrolment
from geartrain_cloud.control.main import ANSWERING
from geartrain_cloud.control.server import make_app
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.bearers import TOKEN_CHARS_MAX, Bearer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.pages.server import make_app as make_page
from geartrain_cloud.platform.config import FleetSection, PlatformConfig
from geartrain_cloud.rest.access import Tokens
from geartrain_cloud.rest.answering import error_form
from geartrain_cloud.rest.audit import AuditLog
from geartrain_cloud.rest.openapi import ROOT, Contract
from geartrain_cloud.rest.routes import declared
from geartrain_examples.stocks.page import StockPage
from tests.control.enrolled import DAY_S, Key
from tests.security.fuzz_page import Wire

TURNS_MAX = 2_000
MARK = "hunter2"
"""Part of each token here, so that a log that holds one is found."""
WORDS = (
    *(b"", b"Bearer", b"Bearer ", b"Basic aHVudGVyMjpodW50ZXIy", b"hunter2", b"Bearer  ,", b"Bearer null"),
    *(b"Bearer gear_hunter2" + b"A" * 36, b"bEARER hunter2", b"Bearer hunter2 hunter2", b"Bearer\thunter2"),
    *(b"Bearer hunter2" + b"x" * TOKEN_CHARS_MAX, b"Bearer hunter2" + b"x" * 7_000, b"Bearer %00hunter2"),
    *("Bearer hunter2\u00fc\u2603".encode(), b"Bearer hunter2\xff\xfe", b"Bearer hunter2\xed\xa0\x80"),
    *(b"Bearer hunter2' OR '1'='1", b"Bearer ../../control.token", b"Bearer $(hunter2)", b'Bearer "hunter2"'),
)
UNREADABLE = (b"Bearer hunter2\x00", b"Bearer hunter2\r", b"Bearer hunter2\n folded", b"Bearer hunter2\x7f")
"""What no header may hold."""


class Shown(Wire):
    """A connection of one who has shown the certificate `shown`, as `ssl` names it, or none."""

    def __init__(self, shown: dict[str, Any] | None) -> None:
        super().__init__()
        self._extra = {"peercert": shown, "peername": ("127.0.0.1", 1)}


async def ask(
    runner: PageRunner, line: str, head: bytes, body: bytes = b"", shown: dict[str, Any] | None = None
) -> tuple[int, str]:
    """The status of the answer to a request, and its sentence; head: further headers, each with its end."""
    made: Any = runner.server
    protocol, wire = made(), Shown(shown)
    protocol.connection_made(wire)
    sized = b"Content-Length: %d\r\n" % len(body) if body else b""
    protocol.data_received(
        line.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + head + sized + b"\r\n" + body
    )
    start, content = b"", b""
    for _ in range(TURNS_MAX):
        start, ended, content = bytes(wire.written).partition(b"\r\n\r\n")
        if ended and content.endswith(b"}"):
            break
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    said = json.loads(content)["error"]
    sentence = said if isinstance(said, str) else said["sentence"]
    return int(start.split()[1]), sentence


def check(found: tuple[int, str], allowed: tuple[int, ...], of: object) -> None:
    status, sentence = found
    assert status in allowed, (of, found)
    assert sentence.isprintable()
    assert MARK not in sentence, (of, found)
    assert 10 < len(sentence) < 400, (of, found)


def headers(*words: bytes) -> bytes:
    """A header for each word that is not empty."""
    return b"".join(b"Authorization: " + word + b"\r\n" for word in words if word)


def check_silence(folder: Path, caplog: pytest.LogCaptureFixture, said: str, tokens: list[str]) -> None:
    """No log has a token, nor has a file; and no trace was logged."""
    shown = caplog.text + said
    assert "Traceback" not in shown
    for token in (MARK, *tokens):
        assert token not in shown
        for path in folder.rglob("*"):
            if path.is_file():
                assert token.encode() not in path.read_bytes(), path


async def asked_of_rest(folder: Path) -> list[str]:
    """Ask at each route of REST; the tokens that were good."""
    clock = [1]
    store = ControlStore(folder / "control.sqlite", lambda: clock[0])
    audit = AuditLog(folder / "audit.sqlite", lambda: clock[0])
    idle = [kind.__new__(kind) for kind in (*ANSWERING, Contract) if kind is not Tokens]
    look = partial(store.bearers.look, own="hunter2-own")
    made = make_app(look, lambda _: None, audit, [Tokens(store.bearers, store.answers), *idle])
    runner = PageRunner(made, error_form)
    await runner.setup()
    try:
        _, ended = store.bearers.add(Bearer("ended", "admin"), 1)
        _, revoked = store.bearers.add(Bearer("revoked", "admin"), 3_600)
        _, other = store.bearers.add(Bearer("other", "operator", "another"), 3_600)
        store.bearers.revoke("revoked")
        clock[0] += 2_000_000
        gone = [b"Bearer " + one.encode() for one in (ended, revoked)]
        routes = declared([*ANSWERING, Contract])
        assert len(routes) > 60
        for route in routes:
            line = f"{route.method} {ROOT}{route.path.format_map(_Names())}"
            body = b"" if route.method == "GET" else b"{}"
            for word in (*WORDS, *gone):
                check(await ask(runner, line, headers(word), body), (401,), (line, word))
            for word in UNREADABLE:
                check(await ask(runner, line, headers(word), body), (400,), (line, word))
            good = b"Bearer " + other.encode()
            check(await ask(runner, line, headers(b"Bearer hunter2", good), body), (401,), line)
            if not route.for_app:
                check(await ask(runner, line, headers(good), body), (403,), line)
        for line in (f"GET /{ROOT}", "GET /", f"DELETE {ROOT}/apps", f"OPTIONS {ROOT}/apps"):
            check(await ask(runner, line, headers(b"Bearer hunter2")), (401,), line)
        for token in (ended, revoked, other):
            await written_elsewhere(runner, token)
    finally:
        await runner.cleanup()
        store.close()
        audit.close()
    return [ended, revoked, other]


async def written_elsewhere(runner: PageRunner, token: str) -> None:
    """Requests of the machine's own admin who takes a token for a name."""
    own = headers(b"Bearer hunter2-own")
    for name in (token, f"x{token}"):
        body = json.dumps({"name": name, "role": "viewer"}).encode()
        found = await ask(runner, f"POST {ROOT}/tokens", own, body)
        check(found, (400,), name)
        assert token not in found[1]
    for line in (f"/tokens/{token}/revoke", f"/tokens?token={token}"):
        found = await ask(runner, f"POST {ROOT}{line}", own, b"{}")
        check(found, (400,), line)
        assert token not in found[1]


class _Names(dict[str, str]):
    """What stands in a path for each of its names."""

    def __missing__(self, key: str) -> str:
        return "1"


async def asked_of_listener(folder: Path) -> list[str]:
    """Ask the device listener, without a certificate too; the tokens that are, or were, good."""

    def now_us() -> int:
        return time.time_ns() // 1_000

    store = ControlStore(folder / "control.sqlite", now_us)
    config = PlatformConfig(folder, fleet=FleetSection(address="localhost", device_port=8443))
    enrolment, request = Enrolment(config, store.devices, now_us), Key().request
    served = [DeviceRoute("GET", path, answer) for path, answer in Trust(folder / "b", store).served()]
    routes = [*join_routes(enrolment), *served]
    runner = PageRunner(make_device_app(routes, enrolment.check), error_form)
    await runner.setup()
    try:
        store.devices.add("truck-1", {})
        replaced, ended, good = (enrolment.invite("truck-1", life)["token"] for life in (DAY_S, 0.0, DAY_S))
        used = str(good)
        enrolment.join(used, Key().request.encode())
        for route in (one for one in routes if not one.is_open):
            line = f"{route.method} /v1{route.path.format_map(_Names())}"
            body = b"" if route.method == "GET" else b"{}"
            for word in WORDS:
                check(await ask(runner, line, headers(word), body), (403,), (line, word))
            for name in ("truck-1", "truck-2", "", "a/b", "\u00fc" * 300):
                shown = {"subject": ((("commonName", name),),), "serialNumber": "2A"}
                check(await ask(runner, line, b"", body, shown), (400, 403), (line, name))
        odd = [word.decode(errors="replace") for word in (*WORDS, *UNREADABLE)]
        for token in (*odd, replaced, ended, used):
            body = json.dumps({"token": token, "request": request}).encode()
            found = await ask(runner, "POST /v1/join", b"", body)
            check(found, (403,), token)
            assert not token or token not in found[1].split()
        for raw in (b"null", b"7", b'["hunter2"]', b'"hunter2\\ud800"', b'"hunter2\xff"', b'"hunter2'):
            body = b'{"request": "", "token": ' + raw + b"}"
            check(await ask(runner, "POST /v1/join", b"", body), (400,), raw)
    finally:
        await runner.cleanup()
        enrolment.close()
        store.close()
    return [replaced, ended, used]


async def asked_of_page(folder: Path) -> list[str]:
    """Ask at each path of a page; no other token was good."""
    runner = PageRunner(make_page(StockPage(), folder / "none", local=False, token="hunter2" * 4))
    await runner.setup()
    try:
        for line in ("GET /", "GET /page.js", "GET /api/symbols", "GET /nothing", "POST /"):
            for word in WORDS:
                check(await ask(runner, line, headers(word)), (401,), (line, word))
                cookie = b"Cookie: geartrain=" + word.removeprefix(b"Bearer ") + b"\r\n"
                check(await ask(runner, line, cookie), (401,), (line, word))
            for word in UNREADABLE:
                check(await ask(runner, line, headers(word)), (400,), (line, word))
            for query in ("", "hunter2", "%00", "%ff", "%ED%A0%80", "x&token=" + "hunter2" * 4, "\u00fc"):
                check(await ask(runner, f"{line}?token={query}", b""), (400, 401), (line, query))
    finally:
        await runner.cleanup()
    return []


@pytest.mark.parametrize("asked", [asked_of_rest, asked_of_listener, asked_of_page])
def test_each_odd_token_is_refused_at_each_request_and_stands_in_no_log(
    asked: Callable[[Path], Coroutine[Any, Any, list[str]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "geartrain")
    tokens = asyncio.run(asked(tmp_path))
    check_silence(tmp_path, caplog, "".join(capfd.readouterr()), tokens)
