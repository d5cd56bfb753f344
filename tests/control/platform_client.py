"""A real HTTP client of control's REST, and a control process of its own to ask."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests import forked
from tests.control.contract import check_answer
from tests.waiting import WAIT_S, Wait, note_log

Program = subprocess.Popen[bytes] | forked.Forked


@dataclass(frozen=True)
class Client:
    """Asks the REST at `url` with the token, if there is one. is_of_today: its answers have today's types."""

    url: str
    token: str = ""
    is_of_today: bool = True
    ca: str = ""

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        where = urlsplit(self.url)
        at = (where.hostname or "", where.port or 0)
        if where.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca or None)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                *at, timeout=WAIT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(*at, timeout=WAIT_S)
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, path, body=body, headers={**own, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, body: Any = None, key: str = "", expect: int | None = None
    ) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Idempotency-Key": key} if key else {}
        status, found, raw = self.raw(method, f"/api/v1{path}", content, headers)
        assert found["content-type"].startswith("application/json")
        value = json.loads(raw)
        if self.is_of_today:
            check_answer(method, path, status, value)
        if expect is not None:
            assert status == expect, value
        return status, value

    def get(self, path: str) -> Any:
        return self.ask("GET", path, expect=200)[1]

    def refusal(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Status, code and sentence of an error, whose form is checked."""
        status, value = self.ask(method, path, body)
        assert status >= 400
        assert set(value) == {"error"}
        assert set(value["error"]) == {"code", "sentence"}
        sentence = value["error"]["sentence"]
        assert sentence.isprintable()
        return status, value["error"]["code"], sentence


def client_of(state: Path, process: Program | None = None) -> Client:
    """A client of the control that runs on the state folder, once it answers."""
    places, wait = PlatformPlaces(state), Wait("control to answer")
    note_log(places.agents)
    note_log(places.logs)
    while True:
        door = read_report(places.door)
        if door:
            token = places.token.read_text(encoding="ascii").strip()
            client = Client(door["url"], token, ca=door.get("ca", ""))
            try:
                if client.raw("GET", "/api/v1/status")[0] == 200:
                    return client
            except OSError:
                pass
        if process is not None:
            assert process.poll() is None, "control has ended"
        wait.check()
        time.sleep(0.05)


@contextmanager
def control_process(state: Path) -> Iterator[tuple[forked.Forked, Client]]:
    """A gear-control of its own on the state folder."""
    process = forked.start(forked.CONTROL, ["--state", str(state)])
    try:
        yield process, client_of(state, process=process)
    finally:
        if process.poll() is None:
            process.kill_group()
        process.wait()
