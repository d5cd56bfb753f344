"""Who may ask what of REST: the role that each route needs, and the tokens that have it.

Between the server and the handlers. Guarantees: without a token that is good nothing is answered, and what
needs another role is refused before its handler runs. A token for one app reaches what is below that app,
and the few routes whose handlers tell or take what is of it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from geartrain.fleet.labels import shown
from geartrain_cloud.control_store.bearers import ROLES, Bearer, Bearers
from geartrain_cloud.control_store.errors import ExpiredError, ForbiddenError, UnauthorizedError
from geartrain_cloud.control_store.idempotency import Answer, Answers
from geartrain_cloud.pages.connections import address_of
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.answering import Handler
from geartrain_cloud.rest.requests import (
    BearerBody,
    EmptyBody,
    PageQuery,
    body_of,
    key_of,
    query_of,
)
from geartrain_cloud.rest.routes import Route, route, route_of

_CALLER = web.RequestKey("bearer", Bearer)


def identify(look: Callable[[str], Bearer], wrong: Callable[[str], None]) -> Middleware:
    """A middleware that answers nothing to who shows no good token. look: whom a token stands for; raises
    `UnauthorizedError`. wrong: is told the address of each wrong token; may raise `ThrottledError`.
    """

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        token = value.strip() if kind.lower() == "bearer" else ""
        try:
            request[_CALLER] = look(token)
        except ExpiredError:
            raise
        except UnauthorizedError:
            if token and request.transport is not None:
                wrong(address_of(request.transport))
            raise
        return await handler(request)

    return ask


@web.middleware
async def allowed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what the token has no role for, or is for another app."""
    made = route_of(request)
    if made is not None:
        check(made, caller_of(request), request.match_info.get("name", ""))
    return await handler(request)


def caller_of(request: web.Request) -> Bearer:
    """Whose token the request has shown."""
    return request[_CALLER]


def check(made: Route, bearer: Bearer, app: str) -> None:
    """Raises `ForbiddenError` unless a token may ask for this; app: the one that the path names."""
    if ROLES.index(bearer.role) < ROLES.index(made.role):
        raise ForbiddenError(
            f"{made.name} needs the role {made.role}, and token {bearer.name} has the role {bearer.role}: "
            "ask an admin for another token"
        )
    if made.is_below_app:
        check_app_of(bearer, app)
    elif bearer.app and not made.for_app:
        raise ForbiddenError(
            f"{made.name} needs the role {made.role} for the whole platform, and token {bearer.name} is for "
            f"app {bearer.app}: ask an admin for another token"
        )


def check_app_of(bearer: Bearer, app: str) -> None:
    """Raises `ForbiddenError` where a token is for another app."""
    if bearer.app not in ("", app):
        raise ForbiddenError(
            f"this needs the role {bearer.role} for app {shown(app)}, and token {bearer.name} is for app "
            f"{bearer.app}: ask an admin for another token"
        )


class Tokens:
    """Those of a platform, as an admin makes and ends them."""

    def __init__(self, bearers: Bearers, kept: Answers) -> None:
        self._bearers, self._kept = bearers, kept

    @route("GET", "/tokens", "admin", answers.Tokens, query=PageQuery)
    async def tokens(self, request: web.Request) -> Answer:
        """The tokens by name, without what they are."""
        page = query_of(request, PageQuery)
        found, following = self._bearers.page(page.limit, page.after)
        return 200, {"items": [_told(one) for one in found], "next": following}

    @route("POST", "/tokens", "admin", answers.MadeToken, statuses=(201,), body=BearerBody, kept=False)
    async def add(self, request: web.Request) -> Answer:
        """Make a token. Only this answer has it, and is not kept: by the same Idempotency-Key there is
        another token in the place of the first.
        """
        body, _ = await body_of(request, BearerBody)
        wanted = Bearer(body.name, body.role, body.app, made_by=caller_of(request).name)
        made, token = self._bearers.add(wanted, body.expires_s, key_of(request))
        return 201, {**_told(made), "token": token}

    @route("POST", "/tokens/{token}/revoke", "admin", answers.Named, body=EmptyBody)
    async def revoke(self, request: web.Request) -> Answer:
        """Have a token, by its name, be good for nothing."""
        _, asked = await body_of(request, EmptyBody)
        name = request.match_info["token"]

        def work() -> Answer:
            self._bearers.revoke(name)
            return 200, {"name": name}

        return self._kept.once(key_of(request), asked, work)


def _told(bearer: Bearer) -> dict[str, Any]:
    """A token as REST lists it."""
    return {
        "name": bearer.name,
        "role": bearer.role,
        "app": bearer.app,
        "made_us": bearer.made_us,
        "made_by": bearer.made_by,
        "expires_us": bearer.expires_us,
        "used_us": bearer.used_us,
    }
