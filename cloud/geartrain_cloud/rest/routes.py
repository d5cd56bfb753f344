"""The table of REST: what each request takes, what it answers, who may ask, and the method that answers.

Between the server and those who answer. Guarantees: a request is defined once, here: the server, its OpenAPI
document and the rights of tokens are made of the same declaration. Parameters that are not declared are
refused, and a method that reads another body or other parameters than it has declared fails at its first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from geartrain_cloud.control_store.bearers import Role
from geartrain_cloud.pages.questions import unexpected
from geartrain_cloud.rest.answering import Handler, Work, json_answer
from geartrain_cloud.rest.requests import NoQuery, check_query, declare

Method = Literal["GET", "POST", "PATCH", "PUT"]
Bytes = bytes
"""A body that is no JSON."""

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__rest_route__"


@dataclass(frozen=True, slots=True)
class Route:
    """One request of REST.

    path: below the root; role: the least that may ask; answer: the type of its JSON; statuses: of an answer
    that is no error, the usual one last; body: its type, `Bytes` where it is no JSON, None for none; query:
    the type of its parameters; kept: whether an Idempotency-Key has the answer given again; said: what it
    does, in words; streams: the media type of an answer that does not end.
    """

    method: Method
    path: str
    role: Role
    answer: Any
    statuses: tuple[int, ...] = (200,)
    body: type[Any] | None = None
    query: type[msgspec.Struct] = NoQuery
    kept: bool = False
    said: str = ""
    streams: str = ""
    for_app: bool = False

    @property
    def is_below_app(self) -> bool:
        """Whether the path names the app that this is of."""
        return self.path.startswith("/apps/{name}")

    @property
    def name(self) -> str:
        """As a person writes it, such as `GET /apps`."""
        return f"{self.method} {self.path}"


_ROUTES = web.AppKey("routes", dict[Any, Route])


def route(
    method: Method,
    path: str,
    role: Role,
    answer: Any,
    *,
    statuses: tuple[int, ...] = (200,),
    body: type[Any] | None = None,
    query: type[msgspec.Struct] = NoQuery,
    kept: bool = True,
    streams: str = "",
    for_app: bool = False,
) -> Callable[[F], F]:
    """Declare a method as what answers a request; its docstring says what it does. The fields are those of
    `Route`. Raises `TypeError` for parameters that could not be read.
    """
    check_query(query)

    def mark(work: F) -> F:
        said = " ".join((inspect.getdoc(work) or "").split())
        is_kept = kept and method != "GET"
        made = Route(method, path, role, answer, statuses, body, query, is_kept, said, streams, for_app)
        setattr(work, _MARK, made)
        return work

    return mark


def declared(kinds: Iterable[type]) -> list[Route]:
    """The requests that methods of these classes answer, in the order in which they stand there."""
    return [made for kind in kinds for made, _ in _marked(kind)]


def bound(one: object) -> list[tuple[Route, Work]]:
    """The requests that an object answers, each with the method that does."""
    return [(made, getattr(one, name)) for made, name in _marked(type(one))]


def _marked(kind: type) -> Iterator[tuple[Route, str]]:
    for name, member in vars(kind).items():
        made = getattr(member, _MARK, None)
        if isinstance(made, Route):
            yield made, name


def add_routes(app: web.Application, root: str, answering: Iterable[object]) -> None:
    """Have `app` answer, below `root`, all that these objects declare."""
    known = app[_ROUTES] = {}
    for made, work in (pair for one in answering for pair in bound(one)):
        handler = _handler(made, work)
        known[handler] = made
        app.router.add_route(made.method, root + made.path, handler, expect_handler=unexpected)


def route_of(request: web.Request) -> Route | None:
    """The declaration of what a request asks for, before anything answers it; None for what there is not."""
    return request.app[_ROUTES].get(request.match_info.handler)


def _handler(made: Route, work: Work) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        declare(request, made.query, made.body)
        found: Any = await work(request)
        return found if isinstance(found, web.StreamResponse) else json_answer(*found)

    return handle
