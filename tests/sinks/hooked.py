"""A receiver of webhooks that keeps keys, and fails as it is told; a process that writes to one until it is
killed.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from geartrain.sinks import WebhookSink
from tests.sinks.test_stores import Pair, columns, tables_of
from tests.waiting import WAIT_S

Trouble = Callable[["Handler", bytes], bool]
"""Does something else than to answer; whether the request is lost with it."""


class Hooks(ThreadingHTTPServer):
    """asked: (key, headers, body) of every request; held: by key, what it has taken; troubles: one for each
    request to come; judge: why a body is refused, with a status, or None.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.held: dict[str, Any] = {}
        self.troubles: list[Trouble] = []
        self.judge: Callable[[Any], tuple[int, str] | None] = lambda _: None
        self.heard = threading.Condition()
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}/alerts?token=in-url"

    @property
    def values(self) -> list[float]:
        """Of all records that were taken, each key once, in the order in which they came."""
        bodies = (body if isinstance(body, list) else [body] for body in self.held.values())
        return [row["value"] for rows in bodies for row in rows]

    def until_more(self, count: int) -> None:
        """Wait for so many requests that are not there yet."""
        with self.heard:
            least = len(self.asked) + count
            assert self.heard.wait_for(lambda: len(self.asked) >= least, WAIT_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a sender that was killed, and a handshake that failed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hooks

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        key, body = self.headers["Idempotency-Key"], json.loads(raw)
        with self.server.heard:
            self.server.asked.append((key, dict(self.headers), body))
            trouble = self.server.troubles.pop(0) if self.server.troubles else None
            verdict = self.server.judge(body)
            lost = trouble is not None and trouble(self, raw)
            if not lost and verdict is None:
                assert self.server.held.setdefault(key, body) == body, "a key came with another body"
            self.server.heard.notify_all()
        if trouble is None:
            self.say(*(verdict or (200, "")))

    def say(self, status: int, text: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        return


def answers(status: int, text: str = "", **headers: str) -> Trouble:
    def say(handler: Handler, _: bytes) -> bool:
        handler.say(status, text, **headers)
        return True

    return say


def takes(handler: Handler, _: bytes) -> bool:
    handler.say(200)
    return False


def hang_up(handler: Handler, _: bytes) -> bool:
    handler.close_connection = True
    return True


def lose_the_answer(handler: Handler, _: bytes) -> bool:
    """It has the records, and nobody hears of it."""
    handler.close_connection = True
    return False


def no_http(handler: Handler, _: bytes) -> bool:
    handler.wfile.write(b"\x00\xff\r\n\r\n")
    handler.close_connection = True
    return True


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Hooks]:
    hooks = Hooks()
    if tls is not None:
        hooks.socket, hooks.scheme = tls.wrap_socket(hooks.socket, server_side=True), "https"
    thread = threading.Thread(target=hooks.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hooks
    finally:
        hooks.shutdown()
        thread.join(WAIT_S)
        hooks.server_close()


BATCHES, ROWS = 8, 5


def main(folder: Path, url: str) -> None:
    """Write what lacks of all micro-batches, as a query does that was started again."""
    tables = tables_of(folder, WebhookSink("alerts", url=url, rows_max=2), kind=Pair)
    tables.attach("q", "c", has_run=False)
    held = tables.progress("q")
    for number in range(0 if held is None else held.batch_id + 1, BATCHES):
        times = range(number * ROWS, (number + 1) * ROWS)
        rows = [columns(Pair, *((time, Pair("a", float(time))) for time in times))]
        tables.write("q", number, {"c": number + 1}, {"sink0": rows})
    tables.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
