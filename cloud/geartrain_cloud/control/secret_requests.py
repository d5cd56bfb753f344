"""Secrets as REST takes and lists them: a value goes in, and none comes out.

Between the server and `Secrets`. Guarantees: neither the audit log nor an answer that is kept holds a value,
or anything from which one could be guessed without the platform's key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from geartrain.adapters.secret_shelf import SecretShelf
from geartrain.control.sealed import VALUE_BYTES_MAX
from geartrain.declarations.secrets import PREFIX, check_secret_name
from geartrain.errors import ConfigError
from geartrain_cloud.control_store.errors import InvalidError
from geartrain_cloud.control_store.idempotency import Answer, Answers
from geartrain_cloud.control_store.names import check_app
from geartrain_cloud.control_store.secrets import Secret, Secrets
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import caller_of, check_app_of
from geartrain_cloud.rest.requests import (
    EmptyBody,
    SecretBody,
    SecretsQuery,
    body_of,
    key_of,
    query_of,
)
from geartrain_cloud.rest.routes import route

DEVICES_SHOWN_MAX = 100


class SecretRequests:
    """Those of a platform."""

    def __init__(
        self,
        secrets: Secrets,
        kept: Answers,
        changed: Callable[[], None],
        shelf: Callable[[str], SecretShelf],
    ) -> None:
        """changed: called after each change; shelf: of a device of this machine."""
        self._secrets, self._kept, self._changed, self._shelf = secrets, kept, changed, shelf

    @route("GET", "/secrets", "viewer", answers.Secrets, query=SecretsQuery, for_app=True)
    async def secrets(self, request: web.Request) -> Answer:
        """The secrets by app and name, without their values, and which devices have them."""
        page, only = query_of(request, SecretsQuery), caller_of(request).app
        if page.app:
            check_app_of(caller_of(request), page.app)
        found, following = self._secrets.page(page.limit, page.after, page.app or only)
        return 200, {"items": self._told(found), "next": following}

    @route("PUT", "/apps/{name}/secrets/{secret}", "operator", answers.Secret, body=SecretBody)
    async def set(self, request: web.Request) -> Answer:
        """Give a secret of an app a value, which nobody is told again. The app need not be there."""
        body, _ = await body_of(request, SecretBody)
        app, name = check_app(request.match_info["name"]), _name_of(request)
        value = checked_value(body.value)

        def work() -> Answer:
            (told,) = self._told([self._secrets.set(app, name, value)])
            return 200, told

        asked = f"{request.method} {request.path} {self._secrets.digest(value)}"
        answer = self._kept.once(key_of(request), asked, work)
        self._changed()
        return answer

    @route("POST", "/apps/{name}/secrets/{secret}/remove", "operator", answers.Named, body=EmptyBody)
    async def remove(self, request: web.Request) -> Answer:
        """Remove a secret of an app, from the platform and from devices."""
        _, asked = await body_of(request, EmptyBody)
        app, name = check_app(request.match_info["name"]), _name_of(request)

        def work() -> Answer:
            self._secrets.remove(app, name)
            return 200, {"name": name}

        answer = self._kept.once(key_of(request), asked, work)
        self._changed()
        return answer

    def _told(self, secrets: Sequence[Secret]) -> list[dict[str, object]]:
        return [
            {
                "app": one.app,
                "name": one.name,
                "version": one.version,
                "set_us": one.set_us,
                "wanted": len(held),
                "applied": sum(has.version == one.version for has in held),
                "devices": [
                    {"device": has.device, "version": has.version, "why": has.why}
                    for has in held[:DEVICES_SHOWN_MAX]
                ],
            }
            for one, held in zip(secrets, self._secrets.held(secrets, self._shelf), strict=True)
        ]


def checked_value(value: str) -> str:
    """`value`, where it can be that of a secret; raises `InvalidError`, which does not say what it is."""
    if not value.removesuffix("\n").removesuffix("\r") or len(value.encode()) > VALUE_BYTES_MAX:
        raise InvalidError(f"value: give 1 to {VALUE_BYTES_MAX:,} bytes of UTF-8")
    if value.startswith(PREFIX):
        raise InvalidError(f"value: it begins with {PREFIX}, which names a secret instead of being one")
    return value


def _name_of(request: web.Request) -> str:
    try:
        return check_secret_name(request.match_info["secret"], "the path")
    except ConfigError as error:
        raise InvalidError(str(error)) from None
