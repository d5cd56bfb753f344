"""The token that a page asks for when others than this machine can reach it.

It stands before a page's server. A program sends `Authorization: Bearer TOKEN` with each request. A person
opens `/?token=TOKEN` once, and is redirected to the same address without it, with a cookie that replaces it.

Guarantees: without the token nothing is answered, not even that a file exists. It is compared in constant
time. It does not stay in the address, which a browser keeps and shows. The cookie is no use to scripts or
other sites, is not the token, and ends when the server does.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from geartrain.adapters.tls import check_private
from geartrain.errors import ConfigError
from geartrain.printable import is_word
from geartrain_cloud.errors import PageError

COOKIE = "geartrain"
CHARACTERS_MIN, CHARACTERS_MAX = 22, 512
"""22 characters of base64 are 128 bits."""


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read; raises `PageError`."""
    try:
        check_private("--token-file", path)
        token = path.read_text(encoding="ascii", errors="replace").strip()
    except ConfigError as error:
        raise PageError(str(error)) from None
    except OSError as error:
        raise PageError(f"--token-file: {path} cannot be read: {error.strerror or error}") from None
    if not CHARACTERS_MIN <= len(token) <= CHARACTERS_MAX or not is_word(token):
        raise PageError(
            f"--token-file: {path} must hold one word of {CHARACTERS_MIN} to {CHARACTERS_MAX} characters: "
            "make one with python3 -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return token


def guard(token: str) -> Middleware:
    """A middleware that lets in who has the token."""
    ticket = hmac.new(secrets.token_bytes(32), token.encode(), "sha256").hexdigest()

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "GET" and _same(request.query.get("token", ""), token):
            answer = web.Response(status=303, headers={"Location": _without_token(request)})
            answer.set_cookie(COOKIE, ticket, httponly=True, samesite="Lax", path="/", secure=request.secure)
            return answer
        if _same(_bearer(request), token) or _same(request.cookies.get(COOKIE, ""), ticket):
            return await handler(request)
        raise web.HTTPUnauthorized(
            reason="send the token as a bearer, or open this address once with ?token=TOKEN"
        )

    return ask


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _bearer(request: web.Request) -> str:
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _without_token(request: web.Request) -> str:
    """The same address with all but the token, relative to this host whatever the path says."""
    rest = "&".join(f"{quote(n, '')}={quote(v, '')}" for n, v in request.query.items() if n != "token")
    path = "/" + request.rel_url.raw_path.lstrip("/\\")
    return f"{path}?{rest}" if rest else path
