"""What a page may be asked at all: the form of a request, before and after a page has answered it.

Between a page's server and its answers. Guarantees: the size of a request is bounded before anything in it is
decoded, and an idle connection ends; a parameter that is given twice, or that the answer did not look at, is
refused; whoever sends no request at all is told so in a sentence, too, and so is who connects when enough
others have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from geartrain.printable import printable
from geartrain_cloud.pages.refusal import CONNECTIONS_MAX, Refusal

LINE_BYTES_MAX = 8_190
"""Of the first line and of each header; more is refused while it is read."""
HEADERS_MAX = 64
ADDRESS_CHARS_MAX = 4_096
PARAMETERS_MAX = 16
IDLE_S_MAX = 75
"""How long a connection may say nothing, or not end its headers."""

_UNREADABLE_CHARS_MAX = 120

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""What every answer carries."""

# aiohttp answers 400 to what is not HTTP, and logs a trace of each, which could fill a disk.
# What our own handlers raise is logged by the server.
_PROTOCOL_LOG = logging.getLogger("geartrain.pages.protocol")
_PROTOCOL_LOG.setLevel(logging.CRITICAL)


class Question(Mapping[str, str]):
    """The parameters of a request, which notes those that were looked at."""

    def __init__(self, request: web.Request) -> None:
        """Raises `HTTPBadRequest` for too many, and for one that is given twice."""
        found = request.query
        if len(found) > PARAMETERS_MAX:
            raise web.HTTPBadRequest(reason=f"it has {len(found)} parameters; {PARAMETERS_MAX} are the most")
        self._values = dict(found)
        if len(self._values) < len(found):
            names = [name for name, _ in found.items()]
            twice = next(name for name in names if names.count(name) > 1)
            raise web.HTTPBadRequest(reason=f"the parameter {_short(twice)} is given twice")
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """The value; whoever asks for it knows the name, whether it is there or not."""
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """The names, all of which count as looked at."""
        self._read |= set(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def check(self) -> None:
        """Raises `HTTPBadRequest` if one was not looked at."""
        if unknown := sorted(set(self._values) - self._read):
            known = f": it takes {', '.join(sorted(self._read))}" if self._read else ": it takes none"
            raise web.HTTPBadRequest(reason=f"there is no parameter {_short(unknown[0])} here{known}")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


@web.middleware
async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address that is too long, and a body, which no page takes."""
    if len(request.raw_path) > ADDRESS_CHARS_MAX:
        reason = f"its address has {len(request.raw_path)} characters; {ADDRESS_CHARS_MAX} are the most"
        raise web.HTTPRequestURITooLong(reason=reason)
    if request.can_read_body and request.method in ("GET", "HEAD"):
        raise web.HTTPBadRequest(reason="it has a body, and a page takes none")
    return await handler(request)


async def unexpected(request: web.Request) -> web.StreamResponse | None:
    """Refuse the header Expect, which is for bodies."""
    sentence = f"{request.path}: it has a header Expect, and a page takes no body"
    return web.json_response({"error": sentence}, status=417)


class PageRunner(web.AppRunner):
    """What serves an app, logs nothing of its clients, and answers what is no request with a sentence."""

    __slots__ = ()

    def __init__(self, app: web.Application) -> None:
        super().__init__(app, access_log=None, logger=_PROTOCOL_LOG)

    @property
    def server(self) -> web.Server | None:
        """What makes the protocol of each connection; aiohttp only calls it."""
        found = super().server
        return None if found is None else cast(web.Server, _protocols(found))


def _protocols(server: web.Server) -> Callable[[], _Protocol]:
    refused: set[Refusal] = set()

    def made() -> _Protocol:
        return _Protocol(
            server,
            refused,
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
    """One connection; it is another's to answer where there are enough."""

    __slots__ = ("_connections", "_refused")

    def __init__(self, server: web.Server, refused: set[Refusal], **settings: Any) -> None:
        super().__init__(server, **settings)
        self._connections, self._refused = server, refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or have it refused."""
        if len(self._connections.connections) < CONNECTIONS_MAX:
            super().connection_made(transport)
            return
        refusal = Refusal(self._refused, HEADERS)
        transport.set_protocol(refusal)
        refusal.connection_made(transport)

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
        answer: Any = web.json_response({"error": sentence}, status=status, headers=HEADERS)
        answer.force_close()
        return cast(web.StreamResponse, answer)
