"""One request to an HTTP address: through a proxy or not, and why it has failed, in words of our own.

Below `geartrain_devices.http_poll`. Guarantees: an answer has a bound; what fails raises `NoAnswerError` with
half a sentence that says what was found and what to see to. No sentence of a library is in it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from geartrain.errors import SourceError

TIMEOUT_S = 10.0
NO_PROXY: Final = "none"


class NoAnswerError(Exception):
    """An address has not answered: half a sentence, of which the address is "it"."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer.

    Args:
        body: its bytes; none where it has no data, as with status 204.
        etag: its header ETag, like the others empty where there is none.
        modified: its header Last-Modified.
        date: its header Date.
        charset: what its header Content-Type says of its encoding.
    """

    body: bytes
    etag: str = ""
    modified: str = ""
    date: str = ""
    charset: str = ""


def opener_of(where: str, proxy: str) -> OpenerDirector:
    """What asks: through `proxy`; where that is empty, through what the environment names; through none for
    `none`. Raises `SourceError`, which begins with `where`, for what is no address of a proxy.
    """
    if not proxy:
        return build_opener()
    if proxy == NO_PROXY:
        return build_opener(ProxyHandler({}))
    try:
        parts = urlsplit(proxy)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not proxy.isascii() or not proxy.isprintable() or " " in proxy:
        raise SourceError(
            f"{where}: proxy = {proxy!r} is no address of a proxy, such as http://proxy.example:3128, "
            f'and not "{NO_PROXY}"'
        )
    return build_opener(ProxyHandler({"http": proxy, "https": proxy}))


def ask(opener: OpenerDirector, url: str, conditions: Mapping[str, str], bytes_max: int) -> HttpAnswer | None:
    """One request.

    Args:
        opener: as of `opener_of`.
        url: the address.
        conditions: headers by which a server answers only what is new.
        bytes_max: of a body.

    Returns:
        The answer, None where nothing is new.

    Raises:
        NoAnswerError: where there is none, or one that is too long.
    """
    request = Request(url, headers=dict(conditions))  # noqa: S310 - the source has checked the scheme
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            body = bytes(response.read(bytes_max + 1))
            etag, modified, date = (
                response.headers.get(name, "") for name in ("ETag", "Last-Modified", "Date")
            )
            charset = response.headers.get_content_charset("") or ""
    except HTTPError as error:
        if error.code == HTTPStatus.NOT_MODIFIED and conditions:
            return None
        raise NoAnswerError(_status(error.code)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswerError(_reason(error)) from None
    if len(body) > bytes_max:
        raise NoAnswerError(f"its answer is longer than {bytes_max} bytes, which are the most")
    return HttpAnswer(body, etag, modified, date, charset)


def _status(code: int) -> str:
    advice = {
        HTTPStatus.UNAUTHORIZED: "it wants a user or a token in the address",
        HTTPStatus.FORBIDDEN: "it does not let this client read that",
        HTTPStatus.NOT_FOUND: "see whether url is right",
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "put user and password into proxy = http://USER:PASSWORD@...",
        HTTPStatus.TOO_MANY_REQUESTS: "ask more seldom: set every_s higher",
    }
    said = next((text for known, text in advice.items() if known == code), "see the log of the server")
    return f"it answers with status {code}: {said}"


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return (
            f"there is no answer within {TIMEOUT_S:g} s: see whether the address and the way there are right"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "its certificate is not trusted: see its name and date, and the authorities of this machine"
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS as this machine does: see whether url has to begin with http://"
    if isinstance(cause, socket.gaierror):
        return "its name cannot be resolved: see url, proxy, and the name server of this machine"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there: see whether the server runs, and on this port"
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"the connection failed ({os.strerror(cause.errno)}): see the network, and proxy"
    return "what answers there does not speak HTTP as it should: see url, and proxy"
