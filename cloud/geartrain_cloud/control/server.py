"""REST under `/api/v1`: what is wanted of a platform goes in, what is reported comes out.

It stands beside every record's path; the command line and pages are its clients. Guarantees: without the
token nothing is answered. Every error is `{"error": {"code", "sentence"}}`. A body has at most
`BODY_BYTES_MAX`, a list comes in pages. A change with an Idempotency-Key is made once.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Middleware

from geartrain.fleet.selectors import parse_selector
from geartrain_cloud.control.answering import Handler, Work, add_headers, error_form, handler_of, sentences
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question as Check
from geartrain_cloud.control.cut_checking import CutWish
from geartrain_cloud.control.cutting import check_can_cut, rules_of
from geartrain_cloud.control.desired import cut_of
from geartrain_cloud.control.errors import (
    ConflictError,
    FlowRefusedError,
    InvalidError,
    UnavailableError,
)
from geartrain_cloud.control.idempotency import Answer
from geartrain_cloud.control.lane_store import accept
from geartrain_cloud.control.model import Device, Submission
from geartrain_cloud.control.names import check_app
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.requests import (
    BODY_BYTES_MAX,
    LIMIT,
    LIMIT_MAX,
    DeviceBody,
    EmptyBody,
    KillBody,
    LabelsBody,
    ReplayBody,
    SubmitBody,
    TokenBody,
    body_of,
    device_options_of,
    key_of,
    number_of,
    options_of,
)
from geartrain_cloud.control.store import ControlStore
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.pages.questions import Question, bounded, unexpected
from geartrain_cloud.pages.server import is_loopback, local_only

if TYPE_CHECKING:
    from geartrain_cloud.control.enrolment import Enrolment

ROOT = "/api/v1"
PORT_PREFERRED = 8764
LINES, LINES_MAX = 100, 10_000
ROWS, ROWS_MAX = 1_000, 10_000
SKIP_MAX = 10**15

Load = Callable[[Check], Awaitable[Checked]]


class Api:
    """The handlers, over the store and what can be observed."""

    def __init__(
        self,
        store: ControlStore,
        load: Load,
        observer: Observer,
        changed: Callable[[], None],
        updates: Updates,
        enrolment: Enrolment | None = None,
    ) -> None:
        """`load`: checks a flow in a process of its own; `changed`: called after each change; updates: knows
        which code is there; enrolment: of a platform that is open to other machines.
        """
        self._store, self._load, self._observer, self._changed = store, load, observer, changed
        self._updates, self._enrolment = updates, enrolment

    async def status(self, request: web.Request) -> Answer:
        """`GET /status`."""
        Question(request).check()
        return 200, await asyncio.to_thread(self._observer.status)

    async def apps(self, request: web.Request) -> Answer:
        """`GET /apps`."""
        question = Question(request)
        limit, after = number_of(question, "limit", LIMIT, LIMIT_MAX), question.get("after", "")
        question.check()
        found, following = self._store.apps.page(limit, after)
        return 200, {"items": [self._observer.item(one) for one in found], "next": following}

    async def submit(self, request: web.Request) -> Answer:
        """`POST /apps`: checks the flow where it is installed, then makes the instance."""
        body, asked = await body_of(request, SubmitBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        check_app(body.name)
        parse_selector(body.devices)
        for one in body.device_cuts:
            parse_selector(one.devices)
        self._store.apps.check_free(body.name)
        options, own = options_of(body.set, "set"), device_options_of(body.device_set)
        revision = json.dumps(body.revision) if body.revision else ""
        bundle = self._updates.bundle_of(revision)
        wishes = tuple(CutWish(spec=one.cut, is_new=True) for one in body.device_cuts)
        checked = await self._load(Check(body.flow, body.cut, options, own, revision, bundle, wishes=wishes))
        for asked_for, found in zip(body.device_cuts, checked.found, strict=True):
            if found.refused:
                raise FlowRefusedError(
                    f"the cut {asked_for.cut} of devices {asked_for.devices}: {found.refused}"
                )
        rules = rules_of([one.devices for one in body.device_cuts], checked.found)
        outline = checked.outline
        if outline is None:
            raise UnavailableError(f"flow {body.flow!r} could not be checked: submit it again")
        meant = list(self._meant(body.devices))
        self._updates.check_reaches(body.flow, outline, [one.device for one in meant])

        def work() -> Answer:
            check_can_cut(self._store, [one.device for one in meant if cut_of(rules, one)])
            made = self._store.apps.submit(
                Submission(
                    body.name,
                    body.flow,
                    body.cut,
                    body.devices,
                    checked.options,
                    checked.device_options,
                    body.isolation,
                    rules,
                ),
                outline,
            )
            devices = list(self._store.desired.assigned(made.instance))
            return 202, {
                "name": made.name,
                "instance": made.instance,
                "revision": outline.revision,
                "devices": devices,
                "isolation": made.isolation,
                "note": _note(outline.shuffles),
            }

        return self._once(key, asked, work)

    async def app(self, request: web.Request) -> Answer:
        """`GET /apps/{name}`."""
        Question(request).check()
        return 200, self._observer.info(self._store.apps.newest(request.match_info["name"]))

    async def logs(self, request: web.Request) -> Answer:
        """`GET /apps/{name}/logs`."""
        question = Question(request)
        lines = number_of(question, "lines", LINES, LINES_MAX)
        question.check()
        instance = self._store.apps.newest(request.match_info["name"])
        devices = list(self._store.desired.assigned(instance.instance))
        return 200, {"items": await asyncio.to_thread(self._observer.lines, instance, lines, devices)}

    async def tables(self, request: web.Request) -> Answer:
        """`GET /apps/{name}/tables`."""
        Question(request).check()
        instance = self._store.apps.newest(request.match_info["name"])
        return 200, {"items": await asyncio.to_thread(self._observer.tables, instance)}

    async def table(self, request: web.Request) -> Answer:
        """`GET /apps/{name}/tables/{table}`: sorted by the fields, or in the order of writing."""
        question = Question(request)
        limit = number_of(question, "limit", ROWS, ROWS_MAX)
        after = number_of(question, "after", 0, SKIP_MAX, 0)
        order = question.get("order", "fields")
        question.check()
        if order not in ("fields", "written"):
            raise InvalidError("order: write fields, or written for a table without a key")
        instance = self._store.apps.newest(request.match_info["name"])
        read = partial(self._observer.rows, instance, request.match_info["table"], after, limit)
        return 200, await asyncio.to_thread(read, as_written=order == "written")

    async def kill(self, request: web.Request) -> Answer:
        """`POST /apps/{name}/kill`."""
        body, asked = await body_of(request, KillBody)

        def work() -> Answer:
            found = self._store.apps.kill(request.match_info["name"], body.mode, purge=body.purge)
            return 202, {"name": found.name, "instance": found.instance, "state": found.state.value}

        return self._once(key_of(request), asked, work)

    async def replay(self, request: web.Request) -> Answer:
        """`POST /apps/{name}/replay`."""
        body, asked = await body_of(request, ReplayBody)
        if body.from_ != "beginning":
            raise InvalidError('from: a replay begins at the log\'s beginning: write "beginning"')

        def work() -> Answer:
            return 202, {"run": self._store.apps.replay(request.match_info["name"]).run}

        return self._once(key_of(request), asked, work)

    async def resume(self, request: web.Request) -> Answer:
        """`POST /apps/{name}/resume`."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            found = self._store.apps.resume(request.match_info["name"])
            return 202, {"name": found.name, "instance": found.instance, "state": found.state.value}

        return self._once(key_of(request), asked, work)

    async def devices(self, request: web.Request) -> Answer:
        """`GET /devices`."""
        question = Question(request)
        limit, after = number_of(question, "limit", LIMIT, LIMIT_MAX), question.get("after", "")
        selector = question.get("label", "all")
        question.check()
        found, following = self._store.devices.page(limit, after, selector)
        return 200, {"items": [self._observer.device(one) for one in found], "next": following}

    async def add_device(self, request: web.Request) -> Answer:
        """`POST /devices`."""
        body, asked = await body_of(request, DeviceBody)

        def work() -> Answer:
            added = self._store.devices.add(body.name, body.labels, local=body.local)
            return 201, {
                "device": self._observer.device(added),
                "file": self._observer.device_file(added),
                "joins": self._enrolment is not None and not added.local,
            }

        return self._once(key_of(request), asked, work)

    async def token(self, request: web.Request) -> Answer:
        """`POST /devices/{d}/token`: what the device joins with; asked again, there is another. No answer
        that holds a token is kept, so an Idempotency-Key changes nothing.
        """
        body, _ = await body_of(request, TokenBody)
        return 201, self._open().invite(request.match_info["device"], body.expires_s)

    async def revoke(self, request: web.Request) -> Answer:
        """`POST /devices/{d}/revoke`: ends its certificates, and the connections that they made."""
        await body_of(request, EmptyBody)
        name = self._store.devices.get(request.match_info["device"]).device
        enrolment = self._open()
        return 200, {"name": name, "revoked": enrolment.revoke(name), "broker": enrolment.broker_note}

    def _meant(self, selector: str) -> Iterator[Device]:
        """The devices in service that a selector means."""
        meant = parse_selector(selector)
        for one in self._store.devices.every():
            if not one.retired and meant.matches(one.device, one.labels):
                yield one

    def _open(self) -> Enrolment:
        if self._enrolment is None:
            raise ConflictError(
                "this platform is not open to other machines: write its address into platform.toml, "
                '[fleet] address = "HOST", and start gear up again'
            )
        return self._enrolment

    async def device(self, request: web.Request) -> Answer:
        """`GET /devices/{d}`."""
        Question(request).check()
        return 200, self._observer.device_info(self._store.devices.get(request.match_info["device"]))

    async def label(self, request: web.Request) -> Answer:
        """`PATCH /devices/{d}`."""
        body, asked = await body_of(request, LabelsBody)

        def work() -> Answer:
            found = self._store.devices.label(request.match_info["device"], body.labels)
            return 200, self._observer.labelled(found)

        return self._once(key_of(request), asked, work)

    async def retire(self, request: web.Request) -> Answer:
        """`POST /devices/{d}/retire`."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            retired = self._store.devices.retire(request.match_info["device"])
            if self._enrolment is not None:
                self._enrolment.retire(retired.device)
            return 202, self._observer.device(retired)

        return self._once(key_of(request), asked, work)

    async def accept(self, request: web.Request) -> Answer:
        """`POST /devices/{d}/accept`."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            return 202, self._observer.device(accept(self._store, request.match_info["device"]))

        return self._once(key_of(request), asked, work)

    def _once(self, key: str, asked: str, work: Callable[[], Answer]) -> Answer:
        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer


def _note(shuffles: int) -> str:
    """What a submit says of a flow that cannot share a query."""
    if shuffles <= SHARED_STAGES:
        return ""
    return (
        f"it has {shuffles} shuffles one after another, and the query that flows share has {SHARED_STAGES}: "
        "it gets a query of its own"
    )


def make_app(
    api: Api, token: str, more: Iterable[tuple[str, str, Work]] = (), *, local: bool = True
) -> web.Application:
    """The server's application; more: routes besides; `local`: only a loopback name is answered."""
    middlewares = [sentences(ROOT, BODY_BYTES_MAX), bounded, *([local_only] if local else []), bearer(token)]
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.on_response_prepare.append(add_headers)
    routes: list[tuple[str, str, Work]] = [
        ("GET", "/status", api.status),
        ("GET", "/apps", api.apps),
        ("POST", "/apps", api.submit),
        ("GET", "/apps/{name}", api.app),
        ("GET", "/apps/{name}/logs", api.logs),
        ("GET", "/apps/{name}/tables", api.tables),
        ("GET", "/apps/{name}/tables/{table}", api.table),
        ("POST", "/apps/{name}/kill", api.kill),
        ("POST", "/apps/{name}/replay", api.replay),
        ("POST", "/apps/{name}/resume", api.resume),
        ("GET", "/devices", api.devices),
        ("POST", "/devices", api.add_device),
        ("GET", "/devices/{device}", api.device),
        ("PATCH", "/devices/{device}", api.label),
        ("POST", "/devices/{device}/retire", api.retire),
        ("POST", "/devices/{device}/accept", api.accept),
        ("POST", "/devices/{device}/token", api.token),
        ("POST", "/devices/{device}/revoke", api.revoke),
        *more,
    ]
    for method, path, work in routes:
        app.router.add_route(method, ROOT + path, handler_of(work), expect_handler=unexpected)
    return app


async def listen(app: web.Application, host: str, port: int, former: int = 0) -> tuple[PageRunner, str]:
    """Serve `app`; what has to be cleaned up, and the address. port: 0 for `former`, or 8764, or any free one
    where those are taken. Raises `UnavailableError`.
    """
    runner = PageRunner(app, error_form)
    await runner.setup()
    ports = [port] if port else [*([former] if former else []), PORT_PREFERRED, 0]
    for number, one in enumerate(ports):
        try:
            await web.TCPSite(runner, host, one).start()
        except OSError as error:
            if number + 1 == len(ports):
                await runner.cleanup()
                why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
                raise UnavailableError(
                    f"REST cannot listen on {host}:{one}: {why or error}; give another control.port"
                ) from None
        else:
            break
    bound = runner.addresses[0][1]
    return runner, f"http://{f'[{host}]' if ':' in host else host}:{bound}"


def is_local(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    return is_loopback(host)


def bearer(token: str) -> Middleware:
    """A middleware that answers nothing to who does not show the token."""

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        given = value.strip().encode(errors="surrogateescape") if kind.lower() == "bearer" else b""
        if hmac.compare_digest(given, token.encode()):
            return await handler(request)
        raise web.HTTPUnauthorized(
            reason="send the token in the header Authorization: Bearer TOKEN; it is in control.token in the "
            "state folder"
        )

    return ask
