"""The connections of a page: how many there may be, of one address and in all, and how long each may take.

They stand before a page's questions. Guarantees: one address cannot take the page from the others, however
many connections it opens and whatever it leaves unsent. A request's headers end within `HEADERS_S_MAX`, an
idle connection within `IDLE_S_MAX`. A client that is refused is told why in one sentence, and holds a socket
for at most `REFUSAL_S`. Where too many are being refused, the connection is closed without an answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web

from geartrain.printable import printable

CONNECTIONS_MAX = 256
"""Connections that a page answers, those that are kept open between two requests among them."""
OF_ADDRESS_MAX = 64
"""Those of one address; of IPv6 one network of 64 bits counts as an address."""
REFUSALS_MAX, REFUSALS_OF_ADDRESS_MAX = 64, 16
"""Connections that are being told that there are too many, in all and of one address."""
REFUSAL_S = 5.0
HEADERS_S_MAX = 10.0
"""How long the headers of a request may take, from the connection's beginning or from their first byte."""
IDLE_S_MAX = 75
"""How long a connection may say nothing between two requests."""
LINE_BYTES_MAX = 8_190
"""Of the first line and of each header; more is refused while it is read."""
HEADERS_MAX = 64

ENOUGH = f"this page has {CONNECTIONS_MAX} connections, which is all that it takes: try again in a moment"
ENOUGH_OF_ADDRESS = (
    f"this page has {OF_ADDRESS_MAX} connections of your address, which is all that it takes of one: close "
    "some, or try again in a moment"
)
TOO_SLOW = f"the headers of a request must end within {HEADERS_S_MAX:g} s: send it again"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""What every answer carries."""

_UNREADABLE_CHARS_MAX = 120

ErrorForm = Callable[[HTTPStatus, str], Mapping[str, Any]]
"""The JSON of an error, from its status and its sentence."""

_PROTOCOL_LOG = logging.getLogger("geartrain.pages.protocol")


def page_error(_status: HTTPStatus, sentence: str) -> Mapping[str, Any]:
    """An error as pages have it."""
    return {"error": sentence}


class PageRunner(web.AppRunner):
    """What serves an app, logs nothing of its clients, and answers what is no request with a sentence."""

    __slots__ = ("_form",)

    def __init__(self, app: web.Application, form: ErrorForm = page_error) -> None:
        """`form`: what an error looks like that the app does not answer itself."""
        self._form = form
        # aiohttp answers 400 to what is not HTTP, and logs a trace of each, which could fill a disk.
        # What our own handlers raise is logged by the server.
        _PROTOCOL_LOG.setLevel(logging.CRITICAL)
        super().__init__(app, access_log=None, logger=_PROTOCOL_LOG)

    @property
    def server(self) -> web.Server | None:
        """What makes the protocol of each connection; aiohttp only calls it."""
        found = super().server
        return None if found is None else cast(web.Server, _protocols(found, self._form))


def _protocols(server: web.Server, form: ErrorForm) -> Callable[[], _Protocol]:
    open_of, refused_of = Counter[str](), Counter[str]()

    def made() -> _Protocol:
        return _Protocol(
            server,
            open_of,
            refused_of,
            form,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),  # which it takes, whatever its types say
            logger=_PROTOCOL_LOG,
            keepalive_timeout=IDLE_S_MAX,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )

    return made


class _Protocol(web.RequestHandler):
    """One connection; where there are enough it is a `Refusal`'s to answer."""

    __slots__ = ("_address", "_deadline", "_form", "_has_begun", "_open_of", "_refused_of")

    def __init__(
        self,
        server: web.Server,
        open_of: Counter[str],
        refused_of: Counter[str],
        form: ErrorForm,
        **settings: Any,
    ) -> None:
        """`open_of`, `refused_of`: connections by address, of all protocols of the page; form: of errors."""
        super().__init__(server, **settings)
        self._form = form
        self._open_of, self._refused_of = open_of, refused_of
        self._address = ""
        self._has_begun = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or have it refused."""
        address = address_of(transport)
        status, sentence = HTTPStatus.OK, ""
        if self._open_of[address] >= OF_ADDRESS_MAX:
            status, sentence = HTTPStatus.TOO_MANY_REQUESTS, ENOUGH_OF_ADDRESS
        elif self._open_of.total() >= CONNECTIONS_MAX:
            status, sentence = HTTPStatus.SERVICE_UNAVAILABLE, ENOUGH
        if sentence:
            refusal = Refusal(self._refused_of, address, _answer(status, self._form(status, sentence)))
            transport.set_protocol(refusal)
            refusal.connection_made(transport)
            return
        self._address = address
        self._open_of[address] += 1
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Have headers that have begun end in time."""
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._has_begun = False
            self._clear_deadline()
            return
        self._has_begun = True
        if self._deadline is None:
            self._set_deadline()

    def connection_lost(self, error: BaseException | None) -> None:
        """There is room for another."""
        self._clear_deadline()
        if self._address:
            self._open_of[self._address] -= 1
            if not self._open_of[self._address]:
                del self._open_of[self._address]
            self._address = ""
        super().connection_lost(error)

    def _set_deadline(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HEADERS_S_MAX, self._end)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        """Hang up on who has not ended his headers, with a sentence where he has begun them."""
        self._deadline = None
        if self._has_begun and self.transport is not None:
            status = HTTPStatus.REQUEST_TIMEOUT
            self.transport.write(_answer(status, self._form(status, TOO_SLOW)))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what cannot be parsed; aiohttp's own is text that quotes what came."""
        super().handle_error(request, status, exc, message)  # raises where an answer is on its way already
        why = (message or "").partition("\n")[0].partition(":")[0].strip(" .")[:_UNREADABLE_CHARS_MAX]
        sentence = f"this is no request that can be read: {printable(why) or 'it failed'}"
        answer: Any = web.json_response(
            self._form(HTTPStatus(status), sentence), status=status, headers=HEADERS
        )
        answer.force_close()
        return cast(web.StreamResponse, answer)


class Refusal(asyncio.Protocol):
    """One connection too many."""

    def __init__(self, refused_of: Counter[str], address: str, answer: bytes) -> None:
        """`refused_of`: how many are being refused now, by address."""
        self._refused_of, self._address, self._answer = refused_of, address, answer
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for what it has to say: what is closed before it was read would be lost with its answer."""
        self._transport = cast(asyncio.Transport, transport)
        many = self._refused_of[self._address] >= REFUSALS_OF_ADDRESS_MAX
        if many or self._refused_of.total() >= REFUSALS_MAX:
            self._transport.abort()
            return
        self._refused_of[self._address] += 1
        self._timer = asyncio.get_running_loop().call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer whatever it is, and hang up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._answer)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """There is room for another."""
        if self._timer is not None:
            self._timer.cancel()
            self._refused_of[self._address] -= 1
            if not self._refused_of[self._address]:
                del self._refused_of[self._address]


def address_of(transport: asyncio.BaseTransport) -> str:
    """By what connections are counted: the address at the other end; of IPv6 its network of 64 bits."""
    peer = transport.get_extra_info("peername")
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _answer(status: HTTPStatus, content: Mapping[str, Any]) -> bytes:
    """A whole answer that ends its connection."""
    body = json.dumps(content).encode()
    ours = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
    lines = {**ours, "Retry-After": "1", "Connection": "close", **HEADERS}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode("ascii") + body
