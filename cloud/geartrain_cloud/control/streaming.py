"""`GET /events`: what changes, sent to who follows it as server-sent events.

Between the events of the control store and REST. Guarantees: nothing is queued for a client. Each has a
place in the list that the store keeps, of which a page is read when its connection takes more. One that stays
behind by more than the list holds is told so by `missed`, and goes on with the oldest. One whose connection
takes nothing for `WRITE_S`, or whose token is no longer good, is let go by `end` with the reason. A token for
an app sees that app's events alone. At most `STREAMS_MAX` follow, `STREAMS_OF_TOKEN_MAX` by one token.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from geartrain.fleet.labels import shown
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.errors import (
    InvalidError,
    NotFoundError,
    StoreError,
    TooManyError,
    UnauthorizedError,
)
from geartrain_cloud.control_store.events import Event, Events
from geartrain_cloud.control_store.names import check_app
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import caller_of, check_app_of
from geartrain_cloud.rest.requests import EventsQuery, query_of
from geartrain_cloud.rest.routes import route

_LOG = logging.getLogger("geartrain.control")

STREAMS_MAX, STREAMS_OF_TOKEN_MAX = 32, 8
"""Clients that follow at a time, in all and by one token."""
PAGE = 100
HEARTBEAT_S = 15.0
"""Where nothing was sent for so long the place alone is, by which both ends see that the other is there."""
WRITE_S = 30.0
LEAVE_S = 5.0
"""For how long the reason of an end waits for a connection that takes nothing."""
LOOK_S = 1.0
"""Between two looks at what no change of the store tells."""
TOGETHER_S = 0.05
"""Events within so short a time are sent together."""
MEDIA = "text/event-stream"
_ID_DIGITS_MAX = 18
_IN_FORCE = ("running", "held", "finished")
"""What the host says of an instance whose revision it runs."""


class _SlowError(Exception):
    """The connection takes nothing."""


@dataclass(slots=True, eq=False)
class _Follower:
    """Who follows, up to which event, when something was last sent, and whether there may be more."""

    request: web.Request
    bearer: Bearer
    app: str
    after: int
    written_s: float
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_there(self) -> bool:
        """Whether he has not hung up; that a stream ends by it is seen when it is written next."""
        return self.request.transport is not None and not self.request.transport.is_closing()


class Streams:
    """Those of one platform, for one event loop."""

    def __init__(
        self,
        events: Events,
        hosted: Callable[[], Mapping[str, HostReport]],
        check: Callable[[Bearer], None],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        write_s: float = WRITE_S,
        leave_s: float = LEAVE_S,
        processes: Callable[[], Mapping[str, Any]] = dict,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """hosted: what the Spark host says of each instance; check: raises `UnauthorizedError` where a token
        is no longer good; heartbeat_s, write_s, leave_s: seconds, as the constants have them; processes: what
        `gear up` says of each; now_s: by which it is known how long nothing was sent.
        """
        self._now_s = now_s
        self._processes = processes
        self._events, self._hosted, self._check = events, hosted, check
        self._heartbeat_s, self._write_s, self._leave_s = heartbeat_s, write_s, leave_s
        self._followers: set[_Follower] = set()
        self._is_closed, self._next_s = False, 0.0
        events.listen(self._wake)

    def _wake(self) -> None:
        for one in self._followers:
            one.news.set()

    async def end(self, _: web.Application) -> None:
        """End all streams, so that the server can."""
        self._is_closed = True
        self._wake()

    def round(self) -> None:
        """Have events tell of what no change of the store tells; called at any time. Raises `StoreError`."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + LOOK_S
        hosted = self._hosted()
        in_force = {name: one.revision for name, one in hosted.items() if one.state in _IN_FORCE}
        self._events.look(in_force, self._processes())

    @route("GET", "/events", "viewer", answers.Event, query=EventsQuery, streams=MEDIA, for_app=True)
    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Follow what changes, as server-sent events; to a token for one app that app's alone. The first is
        `begin`. With Last-Event-ID it goes on after that event.
        """
        bearer, asked = caller_of(request), query_of(request, EventsQuery)
        if asked.app:
            check_app_of(bearer, check_app(asked.app))
            if not self._events.knows(asked.app):
                raise NotFoundError(f"there is no app {asked.app}, and no event of one: see gear list")
        one = _Follower(request, bearer, bearer.app or asked.app, self._after(request, asked), self._now_s())
        self._check_room(bearer)
        self._followers.add(one)
        response = web.StreamResponse(headers={"Content-Type": MEDIA, "X-Accel-Buffering": "no"})
        try:
            _have_it_end(request)
            await response.prepare(request)
            with suppress(OSError):  # it has left
                why = await self._send(response, one)
                await self._leave(response, one, why)
        finally:
            self._followers.discard(one)
        response.force_close()
        return response

    def _check_room(self, bearer: Bearer) -> None:
        there = [one for one in self._followers if one.is_there]
        if sum(one.bearer.name == bearer.name for one in there) >= STREAMS_OF_TOKEN_MAX:
            raise TooManyError(
                f"{STREAMS_OF_TOKEN_MAX} follow events by token {bearer.name}, which is all that can by one: "
                "close some, or take another token"
            )
        if len(there) >= STREAMS_MAX:
            raise TooManyError(f"{STREAMS_MAX} follow events, which is all that can: try again later")

    def _after(self, request: web.Request, asked: EventsQuery) -> int:
        """The number after which a client begins; raises `InvalidError`."""
        given = request.headers.getall("Last-Event-ID", [])
        if given:
            text = given[0]
            is_one = text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX
            if len(given) > 1 or not is_one:
                raise InvalidError(
                    f"Last-Event-ID: give the number of one event, not {shown(', '.join(given))}"
                )
            return int(text)
        if asked.after is not None:
            return asked.after
        return self._events.newest if asked.since_us is None else self._events.before(asked.since_us)

    async def _send(self, response: web.StreamResponse, one: _Follower) -> str:
        """Send what is there, and what comes, until the stream ends; why it does."""
        try:
            await self._write(response, one, [self._sign("begin", one)])
            while not self._is_closed:
                self._check(one.bearer)
                one.news.clear()
                begin, newest = self._events.begin, self._events.newest
                if not begin <= one.after <= newest:
                    one.after = begin if one.after < begin else newest
                    await self._write(response, one, [self._sign("missed", one)])
                found, one.after = self._events.after(one.after, PAGE, one.app)
                if found:
                    await self._write(response, one, found)
                if one.after < self._events.newest:
                    await asyncio.sleep(0)  # whoever reads much lets others go on
                    continue
                await self._rest(response, one)
        except UnauthorizedError as error:
            return str(error)
        except StoreError as error:
            _LOG.warning("a stream of events ends: %s", error)
            return "the control store cannot be read: follow again later"
        except _SlowError:
            _LOG.warning(
                "a stream of events by token %s ends: its connection took nothing for %g s",
                one.bearer.name,
                self._write_s,
            )
            return f"this connection took nothing for {self._write_s:g} s: follow again, and read faster"
        return "the platform's control ends: follow again when it is back"

    async def _rest(self, response: web.StreamResponse, one: _Follower) -> None:
        """Wait until there may be more; what comes may be other apps' alone, and nothing that is sent."""
        due_s = one.written_s + self._heartbeat_s
        with suppress(TimeoutError):
            async with asyncio.timeout(max(due_s - self._now_s(), 0)):
                await one.news.wait()
            await asyncio.sleep(TOGETHER_S)
        if self._now_s() >= due_s:
            await self._write_bytes(response, one, f"id: {one.after}\n\n".encode())

    async def _leave(self, response: web.StreamResponse, one: _Follower, why: str) -> None:
        """Say why a stream ends, as far as the connection takes it, and hang up where it does not."""
        try:
            said = self._sign("end", one, {"why": why})
            async with asyncio.timeout(self._leave_s):
                await response.write(_lines([said]))
        except TimeoutError:
            if one.request.transport is not None:
                one.request.transport.abort()

    def _sign(self, kind: str, one: _Follower, said: dict[str, str] | None = None) -> Event:
        """What is no change: of the stream itself."""
        return Event(one.after, self._events.now_us, kind, "", "", said or {})

    async def _write(self, response: web.StreamResponse, one: _Follower, events: list[Event]) -> None:
        await self._write_bytes(response, one, _lines(events))

    async def _write_bytes(self, response: web.StreamResponse, one: _Follower, content: bytes) -> None:
        try:
            async with asyncio.timeout(self._write_s):
                await response.write(content)
        except TimeoutError:
            raise _SlowError from None
        one.written_s = self._now_s()


def _lines(events: list[Event]) -> bytes:
    return "".join(
        f"id: {one.number}\nevent: {one.kind}\ndata: {msgspec.json.encode(one).decode()}\n\n"
        for one in events
    ).encode()


def _have_it_end(request: web.Request) -> None:
    """Have the system end a connection whose other end is gone without a word, where it can."""
    found = request.transport.get_extra_info("socket") if request.transport is not None else None
    if found is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2_000 * WRITE_S))
