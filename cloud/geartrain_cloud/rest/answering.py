"""How control answers over HTTP: JSON, and every error as `{"error": {"code", "sentence"}}`.

Under REST and under what devices ask. Guarantees: an error that nobody expected tells nothing of the machine,
and ends no server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from geartrain.errors import SelectorError
from geartrain_cloud.control_store.errors import (
    ConflictError,
    ControlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ThrottledError,
    UnauthorizedError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.errors import CertificateError, PageError, TrustConflictError, TrustError
from geartrain_cloud.pages.connections import HEADERS
from geartrain_cloud.sinks.layout import TableError

_LOG = logging.getLogger("geartrain.control")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Work = Callable[[web.Request], Awaitable[Answer]]


def handler_of(work: Work) -> Handler:
    """A handler that answers what `work` gives: a status and JSON."""

    async def handle(request: web.Request) -> web.StreamResponse:
        status, value = await work(request)
        return json_answer(status, value)

    return handle


def sentences(root: str, body_bytes_max: int) -> Middleware:
    """A middleware by which every error gets its form.

    root: the path below which there is anything; body_bytes_max: what a body may hold.
    """

    @web.middleware
    async def say(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            sentence = _said(request, error, root, body_bytes_max)
            answer = json_answer(error.status, error_form(HTTPStatus(error.status), sentence))
            if isinstance(error, web.HTTPMethodNotAllowed):
                answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            if request.can_read_body:
                answer.force_close()  # what nobody reads is not waited for
            return answer
        except (ForbiddenError, ThrottledError, UnauthorizedError) as error:
            return _turned_away(request, error)
        except ControlError as error:
            return _refusal(error.status, error.code, str(error))
        except TrustConflictError as error:
            return _refusal(ConflictError.status, ConflictError.code, str(error))
        except (CertificateError, SelectorError, TrustError) as error:
            return _refusal(InvalidError.status, InvalidError.code, str(error))
        except TableError as error:
            return _refusal(NotFoundError.status, NotFoundError.code, str(error))
        except PageError as error:
            return _refusal(503, "unavailable", str(error))
        except Exception:  # noqa: BLE001 - the server outlives whatever a handler raises
            _LOG.exception("control failed to answer")
            return _refusal(500, "internal", "control failed to answer: its log says why")

    return say


def error_form(status: HTTPStatus, sentence: str) -> dict[str, Any]:
    """The JSON of an error of HTTP."""
    return _as_error(status.name.lower(), sentence)


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """What every answer carries."""
    response.headers.update(HEADERS)


def json_answer(status: int, value: Any) -> web.Response:
    """An answer of this status, with `value` as JSON."""
    return web.json_response(
        value, status=status, dumps=partial(json.dumps, ensure_ascii=False, allow_nan=False)
    )


def _refusal(status: int, code: str, sentence: str) -> web.Response:
    return json_answer(status, _as_error(code, sentence))


def _turned_away(request: web.Request, error: ControlError) -> web.Response:
    """The refusal of who may not ask, whose body nobody reads."""
    answer = _refusal(error.status, error.code, str(error))
    if isinstance(error, ThrottledError):
        answer.headers["Retry-After"] = str(error.wait_s)
    if isinstance(error, UnauthorizedError):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if request.can_read_body:
        answer.force_close()
    return answer


def _as_error(code: str, sentence: str) -> dict[str, Any]:
    return {"error": {"code": code, "sentence": sentence}}


def _said(request: web.Request, error: web.HTTPException, root: str, body_bytes_max: int) -> str:
    if isinstance(error, web.HTTPNotFound):
        return f"{request.path}: there is nothing of this name under {root}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.path}: it takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"{request.path}: a body has at most {body_bytes_max:,} bytes"
    return f"{request.path}: {error.reason}"
