"""A platform that speaks REST as it was agreed, and knows nothing of the client: for the client's tests.

Its answers are written by hand from what the parts have promised each other. It can fail in every way that
a test asks for: refuse, answer late, slowly, too much or not at all, and lose an answer after a change.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

TOKEN = "a-token-of-the-test-0123456789"
Answer = tuple[int, Any]
Trouble = Callable[["Handler", Callable[[], Answer]], bool]
"""Gets a request and what would answer it; whether it has dealt with it."""


class RefusedError(Exception):
    """Carries an answer that refuses."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.answer: Answer = (status, {"error": {"code": code, "sentence": sentence}})


@dataclass
class FakePlatform:
    """What a platform knows. asked: (method, path, headers, body) of each request; troubles: one for each
    of the next requests.
    """

    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_open: bool = False
    broker_note: str = ""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, str]] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    troubles: deque[Trouble] = field(default_factory=deque)
    agents: deque[dict[str, dict[str, Any]]] = field(default_factory=deque)
    states: deque[dict[str, Any]] = field(default_factory=deque)
    lives: int = 0
    revisions: list[dict[str, Any]] = field(default_factory=list)
    change: dict[str, Any] = field(default_factory=dict)
    crosses: dict[str, Any] = field(default_factory=dict)
    kept: list[dict[str, str]] = field(default_factory=list)
    answered: dict[str, Answer] = field(default_factory=dict)
    histories: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def of(self, name: str) -> dict[str, Any]:
        """The app of that name; whoever asks sees it in its next state."""
        if name not in self.apps:
            raise RefusedError(404, "not_found", f"there is no app {name!r}: see gear list")
        if self.states:
            self.apps[name] |= self.states.popleft()
        return self.apps[name]

    def answer(self, method: str, parts: list[str], query: dict[str, str], body: Any) -> Answer:
        """What a request without trouble gets."""
        match method, parts:
            case "GET", ["status"]:
                return 200, {"version": "0.2.0", "url": self.url, "processes": self.processes}
            case "GET", ["apps", name, "steps", step, "state"]:
                self.of(name)
                return 200, self.told | {"step": step, "key": query.get("key")}
            case _, ["apps", name, "backfill" | "history", *file]:
                return self._of_history(name, file, query, body)
            case _, ["apps", *rest]:
                return self._of_apps(method, rest, query, body)
            case _, ["devices", *rest]:
                if self.agents and method == "GET":
                    for name, agent in self.agents.popleft().items():
                        self.devices[name]["agent"] |= agent
                return self._of_devices(method, rest, query, body)
            case "POST", ["agents", "upgrade"]:
                for name in body["devices"]:
                    self.devices[name]["agent"] |= {"wanted": body["program"], "state": "waiting"}
                return 202, {"program": body["program"], "changed": body["devices"]}
        return 404, {"error": {"code": "not_found", "sentence": "there is nothing of this name"}}

    def _of_apps(self, method: str, rest: list[str], query: dict[str, str], body: Any) -> Answer:
        match method, rest:
            case "GET", []:
                return 200, page(list(self.apps.values()), "name", query)
            case "POST", []:
                return self._submit(body)
            case "GET", [name]:
                return 200, self.of(name)
            case "GET", [name, "logs"]:
                self.of(name)
                return 200, {"items": self.lines[-int(query["lines"]) :]}
            case "GET", [name, "tables"]:
                self.of(name)
                held = [
                    {"name": table, "columns": found["columns"], "rows": len(found["rows"])}
                    for table, found in self.tables.items()
                ]
                return 200, {"items": held}
            case "GET", [name, "tables", table]:
                self.of(name)
                return self._table(table, query)
            case "POST", [name, "kill"]:
                return self._kill(name, body)
            case "POST", [name, "replay"]:
                assert body == {"from": "beginning"}
                self.of(name)
                return 202, {"run": 2}
            case "POST", [name, "update" | "rollback" | "promote" | "cut" | "move" | "scale"]:
                return self._go_over(name, body)
            case "GET", [name, "revisions"]:
                self.of(name)
                return 200, {"items": self.revisions}
            case "POST", [name, "retain" | "resume" as verb]:
                return 202, {
                    "name": name,
                    "instance": self.of(name)["instance"],
                    **self._set(name, verb, body),
                }
        return 405, {"error": {"code": "method_not_allowed", "sentence": "this cannot be done"}}

    def _of_history(self, name: str, file: list[str], query: dict[str, str], body: Any) -> Answer:
        instance = self.of(name)["instance"]
        if not file and "refused" in self.told and (body.get("heads") or not body.get("dry_run")):
            return 422, {"error": {"code": "flow_refused", "sentence": self.told["refused"]}}
        if not file:
            made = {"way": "before", "reason": "", "app": name, "is_new": True} | self.told
            return 202, made | {"instance": instance}
        held = self.histories.get(file[0], b"")
        if int(query.get("begin", 0)) == len(held):
            held = self.histories[file[0]] = held + (body or b"")
        return 200, {"bytes": len(held), "whole": str(len(held)) == query.get("size")}

    def _set(self, name: str, verb: str, body: Any) -> dict[str, Any]:
        if verb == "resume":
            self.of(name)["state"] = "running"
            return {"state": "starting"}
        kept: dict[str, Any] = self.of(name).setdefault(
            "retention", {"age_s": 0.0, "bytes": 0, "tables_age_s": 0.0}
        )
        kept.update(body)
        return kept

    def _of_devices(self, method: str, rest: list[str], query: dict[str, str], body: Any) -> Answer:
        match method, rest:
            case "GET", []:
                return 200, page(self._labelled(query.get("label", "all")), "name", query)
            case "POST", []:
                return self._add(body)
            case "GET", [name]:
                return 200, self._device(name)
            case "PATCH", [name]:
                labels = self._device(name)["labels"] | body["labels"]
                self.devices[name]["labels"] = {k: v for k, v in labels.items() if v is not None}
                return 200, {**self.devices[name], "kept": self.kept}
            case "POST", [name, "token"]:
                self._device(name)
                secret = f"secret-{len(self.asked)}"
                asked = {"url": "https://host.example:8443", "token": secret, "ca_fingerprint": "sha256:ab"}
                return 201, asked | {"expires_us": 1_700_000_000_000_000}
            case "POST", [name, "revoke"]:
                return 200, {"name": self._device(name)["name"], "revoked": 2, "broker": self.broker_note}
            case "POST", [name, "accept"]:
                return 202, self._device(name)
            case "POST", [name, "retire"]:
                self._device(name)["retired"] = True
                return 202, self.devices[name]
        return 405, {"error": {"code": "method_not_allowed", "sentence": "this cannot be done"}}

    def _submit(self, body: Any) -> Answer:
        known = {
            "name",
            "flow",
            "cut",
            "devices",
            "set",
            "device_set",
            "device_cuts",
            "revision",
            "isolation",
        }
        assert set(body) <= known | {"retain_s", "retain_bytes", "retain_tables_s"}
        name = body["name"]
        if name in self.apps and self.apps[name]["state"] != "ended":
            raise RefusedError(409, "conflict", f"the app {name} runs already: kill it first")
        self.lives += 1
        assigned = [one["name"] for one in self._labelled(body["devices"])]
        self.apps[name] = {
            "name": name,
            "instance": f"{name}.{self.lives}",
            "state": "submitted",
            "wanted": "running",
            "revision": "ab" * 32,
            "flow": body["flow"],
            "isolation": body.get("isolation", "shared"),
            "devices": {"assigned": len(assigned), "applied": 0, "online": len(assigned)},
            "why": "",
        }
        made = self.apps[name]
        return 202, {
            "name": name,
            "instance": made["instance"],
            "revision": made["revision"],
            "devices": assigned,
            "note": "it has 3 shuffles" if name == "deep" else "",
        }

    def _go_over(self, name: str, body: Any) -> Answer:
        app = self.of(name)
        if not body.get("dry_run"):
            app |= self.crosses
        made = {"name": name, "instance": app["instance"], "code": "cd" * 32, "former": "ef" * 32}
        return 200 if body.get("dry_run") else 202, made | {"devices": ["truck-1"]} | self.change

    def _table(self, table: str, query: dict[str, str]) -> Answer:
        if table not in self.tables:
            raise RefusedError(404, "not_found", f"there is no table {table!r}")
        found = self.tables[table]
        limit, after = int(query.get("limit", 1_000)), int(query.get("after", 0))
        rows = found["rows"][after : after + limit]
        more = after + limit < len(found["rows"])
        return 200, {"columns": found["columns"], "rows": rows, "next": after + limit if more else None}

    def _kill(self, name: str, body: Any) -> Answer:
        assert body["mode"] in ("drain", "now")
        self.of(name).update(state="draining", wanted="killed")
        return 202, {"name": name, "instance": self.apps[name]["instance"], "state": "draining"}

    def _add(self, body: Any) -> Answer:
        name = body["name"]
        if name in self.devices:
            raise RefusedError(409, "conflict", f"the device {name} was added already")
        labels = body.get("labels", {})
        self.devices[name] = {"name": name, "labels": labels, "serial": 1, "applied": 0, "online": False}
        file = {"device": name, "broker": "127.0.0.1:1883", "state": 'st"ate\x7f\n', "tls": {"ca": "ca.pem"}}
        return 201, {"device": self.devices[name], "file": file, "joins": self.is_open}

    def _device(self, name: str) -> dict[str, Any]:
        if name not in self.devices:
            raise RefusedError(404, "not_found", f"there is no device {name!r}")
        return self.devices[name]

    def _labelled(self, selector: str) -> list[dict[str, Any]]:
        key, _, value = selector.partition("=")
        return [
            one
            for one in self.devices.values()
            if selector in ("all", one["name"]) or one["labels"].get(key) == value
        ]


def page(items: list[Any], key: str, query: dict[str, str]) -> dict[str, Any]:
    """A page of a list, in the order of names."""
    limit = min(int(query.get("limit", 100)), 2)  # so that two pages are there soon
    later = [one for one in sorted(items, key=lambda one: one[key]) if one[key] > query.get("after", "")]
    return {"items": later[:limit], "next": later[limit - 1][key] if len(later) > limit else None}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    platform: FakePlatform

    def answer(self) -> None:
        """Read it, and answer it as the next trouble has it."""
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        raw = self.rfile.read(length)
        is_json = headers.get("content-type") != "application/octet-stream"
        body = (json.loads(raw) if is_json else raw) if length else None
        self.platform.asked.append((self.command, self.path, headers, body))
        parts = urlsplit(self.path)

        def usual() -> Answer:
            if headers.get("authorization") != f"Bearer {TOKEN}":
                return 401, {"error": {"code": "unauthorized", "sentence": "send the token"}}
            key = headers.get("idempotency-key", "")
            assert (self.command == "GET") is (not key), "a change has a key"
            if key in self.platform.answered:
                return self.platform.answered[key]
            where = [unquote(part) for part in parts.path.split("/")[3:]]
            assert parts.path.startswith("/api/v1/")
            try:
                found = self.platform.answer(self.command, where, dict(parse_qsl(parts.query)), body)
            except RefusedError as refused:
                found = refused.answer
            if key:
                self.platform.answered[key] = found
            return found

        if not (self.platform.troubles and self.platform.troubles.popleft()(self, usual)):
            self.send(*usual())

    do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815  # the library's names

    def send(self, status: int, value: Any) -> None:
        """Answer with JSON."""
        self.send_bytes(status, json.dumps(value).encode())

    def send_bytes(self, status: int, body: bytes, **headers: str) -> None:
        """Answer with these bytes."""
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the library's name
        """Say nothing."""


@contextmanager
def running(platform: FakePlatform, tls: ssl.SSLContext | None = None) -> Iterator[FakePlatform]:
    """The platform, served on loopback, with `tls` over HTTPS."""
    kind = type("Bound", (Handler,), {"platform": platform})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    platform.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    try:
        yield platform
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hang_up(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """Nothing is done and nothing is answered."""
    handler.close_connection = True
    return True


def lose_the_answer(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """The change is made, and the answer is lost."""
    usual()
    handler.close_connection = True
    return True


def unavailable(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """Not now."""
    handler.send(503, {"error": {"code": "unavailable", "sentence": "control is starting"}})
    return True


def cut_short(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """Half of an answer."""
    body = json.dumps(usual()[1]).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(2 * len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True
    return True


def no_json(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """Another program answers."""
    handler.send_bytes(200, b"<html>hello</html>")
    return True


def moved(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """Go elsewhere, with the token."""
    handler.send_bytes(307, b"", Location=f"{handler.platform.url}/elsewhere")
    return True


def endless(handler: Handler, usual: Callable[[], Answer]) -> bool:
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        handler.close_connection = True
    return True
