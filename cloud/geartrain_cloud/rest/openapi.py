"""The OpenAPI 3.1 document of REST, made of the table of its routes.

Beside the server, which serves it at `/api/v1/openapi.json`. Guarantees: it is a function of the routes and
of the version alone, so that the file in the documentation is the same. It names each status of an answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web
from msgspec.json import schema_components

from geartrain import __version__
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import IDEMPOTENCY_KEY_CHARS_MAX
from geartrain_cloud.rest.routes import Bytes, Route, declared, route

ROOT = "/api/v1"
REFUSED = {
    400: "The request has a mistake.",
    401: "The token is missing, or is not good.",
    403: "The token does not allow this.",
    404: "There is nothing of this name.",
    409: "It contradicts what stands.",
    413: "The body has too many bytes.",
    414: "The address is too long.",
    415: "The body is of another media type.",
    417: "The header Expect is not served.",
    421: "The server does not answer to this name of a host.",
    422: "The flow, its cut or a setting of it is refused.",
    429: "More is asked at a time than is answered.",
    503: "Something that control needs does not answer now.",
}
"""What each status of an error means; all have the same form."""
_OF_BODIES = (413, 415, 422)
_TEMPLATE = "#/components/schemas/{name}"
_PLACE = re.compile(r"\{(\w+)\}")


class Contract:
    """Serves the document."""

    def __init__(self, kinds: Iterable[type]) -> None:
        """`kinds`: of all else that answers requests."""
        self._document = document(kinds)

    @route("GET", "/openapi.json", "viewer", dict[str, Any], for_app=True)
    async def show(self, _: web.Request) -> Answer:
        """This document."""
        return 200, self._document


def document(kinds: Iterable[type]) -> dict[str, Any]:
    """The document of the requests that methods of these classes answer, and of the one for itself."""
    known = declared([*kinds, Contract])
    schemas, components = _schemas(known)
    paths: dict[str, dict[str, Any]] = {}
    for one in known:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    failure = {"application/json": {"schema": schemas[answers.Failure]}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Geartrain",
            "version": __version__,
            "summary": "What is wanted of a platform goes in, what is reported comes out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": ROOT}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {"description": said, "content": failure} for status, said in REFUSED.items()
            },
            "schemas": components,
        },
    }


def _schemas(known: Iterable[Route]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """By type its schema, and the named ones to which these refer."""
    kinds: list[Any] = [answers.Failure]
    for one in known:
        kinds += [one.answer, *([] if one.body in (None, Bytes) else [one.body])]
    kinds = list(dict.fromkeys(kinds))
    made, components = schema_components(kinds, ref_template=_TEMPLATE)
    for one in components.values():
        if "description" in one:
            one["description"] = " ".join(one["description"].split())
    return dict(zip(kinds, made, strict=True)), dict(sorted(components.items()))


def _operation(one: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    words = [word for word in re.split(r"[/{}.]", one.path) if word]
    made: dict[str, Any] = {
        "operationId": "_".join([one.method.lower(), *words]),
        "tags": [words[0]],
        "summary": one.said,
        "x-role": one.role,
        "parameters": [*_parameters(one)],
        "responses": _responses(one, schemas),
    }
    if one.body is Bytes:
        made["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    elif one.body is not None:
        content = {"application/json": {"schema": schemas[one.body]}}
        needed = any(field.required for field in msgspec.structs.fields(one.body))
        made["requestBody"] = {"required": needed, "content": content}
    return made


def _parameters(one: Route) -> Iterable[dict[str, Any]]:
    for name in _PLACE.findall(one.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    _, components = schema_components([one.query], ref_template=_TEMPLATE)
    found = components[one.query.__name__]["properties"]
    about = " ".join((inspect.getdoc(one.query) or "").split())
    for field in msgspec.structs.fields(one.query):
        schema = found[field.encode_name]
        if "anyOf" in schema:  # what may be left out: null cannot be written in an address
            schema = next(way for way in schema["anyOf"] if way.get("type") != "null")
        yield {
            "name": field.encode_name,
            "in": "query",
            "description": about,
            "required": field.required,
            "schema": schema,
        }
    if one.streams:
        about = "The number of the last event that was seen; the stream goes on after that one."
        schema = {"type": "integer", "minimum": 0}
        last = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": schema}
        yield {**last, "description": about}
    if one.kept:
        schema = {"type": "string", "maxLength": IDEMPOTENCY_KEY_CHARS_MAX}
        yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}


def _responses(one: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    kind = one.streams or "application/json"
    about = {200: "What was asked for.", 201: "It is made.", 202: "It is accepted, and will be done."}
    found: dict[str, Any] = {
        str(status): {"description": about[status], "content": {kind: {"schema": schemas[one.answer]}}}
        for status in one.statuses
    }
    for status in REFUSED:
        if one.body is not None or status not in _OF_BODIES:
            found[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return found
