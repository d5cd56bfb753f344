"""The web server of a page: its static files, and its answers as JSON. It serves nothing else.

It stands after the end of a record's path: it reads `tables.sqlite` and writes nothing. Guarantees:

- It listens on the loopback interface, where it answers only to that name. So no foreign site can read it
  through a rebound name.
- It listens elsewhere only if it is told to and has a token to ask for.
- It serves no file but those that the page brought.
- It refuses a request of any form that it does not know, and gives the reason of every refusal in a sentence.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import mimetypes
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from aiohttp import web

from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.errors import PageError
from geartrain_cloud.pages.connections import HEADERS, PageRunner
from geartrain_cloud.pages.page import Page, Tables
from geartrain_cloud.pages.questions import Question, bounded, unexpected
from geartrain_cloud.pages.reader import TableReader
from geartrain_cloud.pages.token import guard, read_token
from geartrain_cloud.platform.config import is_loopback
from geartrain_cloud.sinks.layout import TableError

_LOG = logging.getLogger("geartrain.pages")

PORT_PREFERRED = 8765
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Report = Callable[[], Mapping[str, Any]]
"""What is told beside the tables, as JSON; empty while it is not there yet."""


def make_app(
    page: Page,
    tables: Path,
    *,
    local: bool = True,
    token: str | None = None,
    reports: Mapping[str, Report] | None = None,
) -> web.Application:
    """The page over the tables in the file `tables`; `local`: only a loopback name is answered; token: what
    each request must show, if it must; reports: by the name under which each is served.
    """
    middlewares = [_sentences, bounded, *([local_only] if local else []), *([guard(token)] if token else [])]
    app = web.Application(middlewares=middlewares, client_max_size=1024)
    app.on_response_prepare.append(_add_headers)
    files = {path.name: path.read_bytes() for path in sorted(page.static.iterdir()) if path.is_file()}
    for name, content in files.items():
        path = "/" if name == "index.html" else f"/{name}"
        app.router.add_get(path, _file(name, content), expect_handler=unexpected)
    app.router.add_get(
        "/api/{path:.+}", _api(page, TableReader(tables), reports or {}), expect_handler=unexpected
    )
    return app


async def serve(
    page: Page,
    tables: Path,
    announce: Callable[[str], None],
    until: Callable[[], Awaitable[object]],
    *,
    host: str = LOOPBACK,
    port: int | None = None,
    token_file: Path | None = None,
    context: ssl.SSLContext | None = None,
    reports: Mapping[str, Report] | None = None,
) -> None:
    """Serve until `until()` returns; `announce` gets the address once it answers.

    context: of TLS, None for HTTP. port: None for 8765, or any free one where that is taken. token_file:
    holds the token that each request must show; there is no way to listen to other machines without one.
    reports: as in `make_app`. Raises `PageError` when it cannot listen, or may not.
    """
    local = is_loopback(host)
    if not local and token_file is None:
        raise PageError(
            f"the page does not listen on {host}, where other machines reach it, without a token: "
            "give --token-file FILE"
        )
    token = None if token_file is None else read_token(token_file)
    runner = PageRunner(make_app(page, tables, local=local, token=token, reports=reports))
    await runner.setup()
    try:
        await _listen(runner, host, port, context)
        bound = runner.addresses[0][1]
        scheme = "http" if context is None else "https"
        announce(f"{scheme}://{f'[{host}]' if ':' in host else host}:{bound}/")
        await until()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int | None, context: ssl.SSLContext | None) -> None:
    ports = [PORT_PREFERRED, 0] if port is None else [port]
    for index, one in enumerate(ports):
        try:
            await web.TCPSite(runner, host, one, ssl_context=context).start()
        except OSError as error:
            if index + 1 == len(ports):
                raise PageError(
                    f"the page cannot listen on {host}:{one}: {_reason(error)}; give another --port, or "
                    "leave it out for one that is free"
                ) from None
        else:
            return


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    return error.strerror or str(error)


def _file(name: str, content: bytes) -> Handler:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"

    async def handle(request: web.Request) -> web.StreamResponse:
        Question(request).check()
        charset = "utf-8" if kind.startswith("text/") else None
        return web.Response(body=content, content_type=kind, charset=charset)

    return handle


def _api(page: Page, rows: Tables, reports: Mapping[str, Report]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        path = [unquote(part) for part in request.rel_url.raw_parts[2:] if part]  # %2F is part of a name
        question = Question(request)
        if len(path) == 1 and path[0] in reports:
            question.check()
            found = await asyncio.to_thread(reports[path[0]])
            return _json(200, found) if found else _json(503, {"error": "it is not there yet: ask again"})
        status, value = await asyncio.to_thread(page.answer, rows, path, question)
        if status == HTTPStatus.OK:
            question.check()
        return _json(status, value)

    return handle


def _json(status: int, value: Any) -> web.Response:
    return web.json_response(
        value, status=status, dumps=partial(json.dumps, ensure_ascii=False, allow_nan=False)
    )


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


@web.middleware
async def _sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as JSON with a sentence; an unexpected one is logged and tells nothing of the machine."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        answer = _json(error.status, {"error": f"{request.path}: {error.reason}"})
        if isinstance(error, web.HTTPUnauthorized):
            answer.headers["WWW-Authenticate"] = "Bearer"
        if request.can_read_body:
            answer.force_close()  # what nobody reads is not waited for
        return answer
    except TableError as error:
        return _json(503, {"error": str(error)})
    except Exception:  # noqa: BLE001 - the server outlives whatever a page raises
        _LOG.exception("the page failed to answer")
        return _json(500, {"error": "the page failed to answer: its log says why"})


@web.middleware
async def local_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer only to a name of this machine, so that no foreign site gets in through a rebound name."""
    try:
        hosts = {
            request.url.host,
            urlsplit(f"//{request.headers['Host']}").hostname,
        }  # an address may name one
    except (ValueError, KeyError):
        raise web.HTTPBadRequest(reason="its header Host does not name a host") from None
    if not all(is_loopback(host or "") for host in hosts):
        raise web.HTTPMisdirectedRequest(reason="this page answers only to 127.0.0.1 and localhost")
    return await handler(request)
