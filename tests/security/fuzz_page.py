"""Requests to a page, as bytes on a connection: spoiled ones, and ones put together from good and bad parts.

One of the readers of `tests.security.fuzz`. The server, its parser and the page are the real ones; only the
socket is in memory.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain_client.planning.drawing import draw
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.pages.server import make_app
from geartrain_examples.stocks.page import StockPage
from geartrain_examples.traffic.page import TrafficPage
from tests.pages import traffic_tables
from tests.pages.conftest import tables_of, write_prices
from tests.security import spoil
from tests.security.measured import Memory, Outcome, fast_folder, run_inline

TOKEN = "a-token-of-128-random-bits"
TURNS_MAX = 60
"""Turns of the loop within which a request is answered that can be."""
_REST = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PATHS = (
    b"/",
    b"/api/symbols",
    b"/api/report/A?period=2008",
    b"/page.js",
    b"/api/%2e%2e/x?%F0=%",
    b"/api/streets?minute=2026-01-01T00:07:00Z",
    b"/api/overspeed?after=0",
)


class Wire(asyncio.Transport):
    """The server's side of a connection in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep what would be sent."""
        self.written += data

    def is_closing(self) -> bool:
        """Whether the server has hung up."""
        return self.closed

    def close(self) -> None:
        """Hang up."""
        self.closed = True

    def abort(self) -> None:
        """Hang up."""
        self.closed = True

    def pause_reading(self) -> None:
        """All is there already."""

    def resume_reading(self) -> None:
        """All is there already."""

    def is_reading(self) -> bool:
        """Always."""
        return True


class Failures(logging.Handler):
    """What a page has logged: a trace means that it failed, whatever it answered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.said.append(self.format(record))


def requests(numbers: range) -> Outcome:
    """Requests to three pages: of stocks, of a city, and one that asks for a token."""
    with fast_folder() as folder:
        prices = write_prices(
            Path(folder) / "prices.csv", [("A", "2008-01-01", 2.0), ("<b>", "2008-01-02", 1.0)]
        )
        stocks, city = tables_of(prices, Path(folder)), traffic_tables.build(_made(Path(folder) / "city"))
        city.close()
        plan = make_plan(load_flow("geartrain_examples.stocks.flow:flow").graph(), "edge")
        apps = [
            make_app(StockPage(), stocks),
            make_app(TrafficPage(plan, traffic_tables.LIMIT_MPS, 60.0, draw(plan)), city.path),
            make_app(StockPage(), stocks, local=False, token=TOKEN),
        ]
        return run_inline(_requests(numbers, apps))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _requests(numbers: range, apps: list[web.Application]) -> Outcome:
    failures = Failures()
    logging.getLogger("geartrain.pages").addHandler(failures)
    runners = [PageRunner(app) for app in apps]
    for runner in runners:
        await runner.setup()
    bearer = f" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    seeds = [b"GET " + path + rest for path in _PATHS for rest in (_REST, bearer)]
    seeds += [b"POST /api/symbols" + _REST, f"GET /?token={TOKEN}".encode() + _REST]
    memory, refused = Memory(numbers), 0
    try:
        for number in numbers:
            memory.look(number)
            data = spoil.requests(Random(spoil.SEED + number), seeds)
            status = await _ask(runners[number % len(runners)].server, data)
            if status >= 500 or failures.said:
                raise AssertionError(f"input {number}: {status} answers {data!r}: {failures.said}")
            refused += status not in (200, 303)
    finally:
        for runner in runners:
            await runner.cleanup()
        logging.getLogger("geartrain.pages").removeHandler(failures)
    return Outcome("requests", len(numbers) - refused, refused, memory.growth_bytes())


async def _ask(server: Any, data: bytes) -> int:
    """The first status that a page answers to bytes; 0 where it just closes the connection, or waits for more
    after an empty line, which makes a request of whatever is unfinished.
    """
    protocol, wire = server(), Wire()
    protocol.connection_made(wire)
    for part in (data, b"\r\n\r\n"):
        protocol.data_received(part)
        for _ in range(TURNS_MAX):
            if b"\r\n" in wire.written or wire.closed:
                break
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    words = bytes(wire.written).partition(b"\r\n")[0].split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
