"""The device listener: what devices on other machines ask of a platform, over HTTPS below `/v1`.

Beside REST, which is for people, and open to all who reach the machine. Guarantees: whoever asks is a device
whose certificate is good, but for the few routes that are open. A request has a bounded body, and errors have
the form of REST. A route is a `DeviceRoute`; its handler learns from `caller` which device asks.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from geartrain.adapters.tls import listening_context
from geartrain.fleet.labels import check_device
from geartrain_cloud.broker.open_broker import is_loopback_only
from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.certs import SERVER, Fleet
from geartrain_cloud.control.enrolment import Enrolment
from geartrain_cloud.control_store.errors import RefusedError, UnavailableError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.pages.questions import Question, bounded, unexpected
from geartrain_cloud.rest.answering import Handler, add_headers, error_form, handler_of, sentences
from geartrain_cloud.rest.requests import body_of

ROOT = "/v1"
BODY_BYTES_MAX = 64 << 10
_CALLER = web.RequestKey("caller", str)


@dataclass(frozen=True, slots=True)
class DeviceRoute:
    """`path` stands below `/v1`; is_open: whether one without a certificate may ask, too."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False


class JoinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/join`; request: a signing request, PEM."""

    token: str
    request: str


class RenewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/renew`; request: a signing request, PEM."""

    request: str


def caller(request: web.Request) -> str:
    """The device that asks, by its certificate; raises `RefusedError` where it has shown none."""
    if _CALLER not in request:
        raise RefusedError("show the certificate that the device got when it joined")
    return request[_CALLER]


def join_routes(enrolment: Enrolment) -> list[DeviceRoute]:
    """What a device asks to become one, and to remain one."""

    async def authority(request: web.Request) -> Answer:
        Question(request).check()
        return 200, {"certificate": enrolment.fleet.ca.read_text(encoding="ascii")}

    async def join(request: web.Request) -> Answer:
        body, _ = await body_of(request, JoinBody)
        return 200, enrolment.join(body.token, body.request.encode())

    async def renew(request: web.Request) -> Answer:
        body, _ = await body_of(request, RenewBody)
        return 200, enrolment.renew(caller(request), body.request.encode())

    return [
        DeviceRoute("GET", "/authority", handler_of(authority), is_open=True),
        DeviceRoute("POST", "/join", handler_of(join), is_open=True),
        DeviceRoute("POST", "/renew", handler_of(renew)),
    ]


def make_device_app(routes: Iterable[DeviceRoute], check: Callable[[str, int], None]) -> web.Application:
    """The listener's application; `check`: raises `RefusedError` for a device's certificate by its serial."""
    known = list(routes)
    is_open = {ROOT + route.path for route in known if route.is_open}
    app = web.Application(
        middlewares=[sentences(ROOT, BODY_BYTES_MAX), bounded, _identify(check, is_open)],
        client_max_size=BODY_BYTES_MAX,
    )
    app.on_response_prepare.append(add_headers)
    for route in known:
        app.router.add_route(route.method, ROOT + route.path, route.handler, expect_handler=unexpected)
    return app


def _identify(check: Callable[[str, int], None], is_open: set[str]) -> Middleware:
    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.get_extra_info("peercert")
        if shown:
            names = dict(pair for part in shown["subject"] for pair in part)
            name, serial = check_device(names.get("commonName", "")), int(shown["serialNumber"], 16)
            check(name, serial)
            request[_CALLER] = name
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical not in is_open:
            caller(request)
        return await handler(request)

    return identify


def device_context(fleet: Fleet, address: str) -> ssl.SSLContext:
    """TLS with the certificate of the platform's address, which asks for a device's and does without. One
    that is renewed in its file is shown from then on.
    """
    paths = fleet.paths(SERVER, address)
    context = listening_context(str(paths.certificate), str(paths.key), "", "fleet")
    context.load_verify_locations(fleet.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def listen_for_devices(
    app: web.Application, context: ssl.SSLContext, address: str, port: int
) -> PageRunner:
    """Serve `app` to all who reach this machine; what has to be cleaned up. Raises `UnavailableError`."""
    runner = PageRunner(app, error_form)
    await runner.setup()
    host = LOOPBACK if is_loopback_only(address) else None
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
    except OSError as error:
        await runner.cleanup()
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise UnavailableError(
            f"devices cannot be listened to at port {port}: {why or error}; give another fleet.device_port"
        ) from None
    return runner
