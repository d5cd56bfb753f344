"""REST under `/api/v1`: what is wanted of a platform goes in, what is reported comes out.

It stands beside every record's path; the command line and pages are its clients. Guarantees: without a
token that may ask nothing is answered, and each change is in the audit log. Every error is
`{"error": {"code", "sentence"}}`. A body has at most `BODY_BYTES_MAX`, a list comes in pages. A change with
an Idempotency-Key is made once.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiohttp import web

from geartrain.adapters.tls import listening_context
from geartrain.control.states import ADAPTIVE
from geartrain.fleet.selectors import parse_selector
from geartrain_cloud.changes.cut_checking import CutWish
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question as Check
from geartrain_cloud.control.cutting import rules_of
from geartrain_cloud.control.lane_store import accept
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.errors import (
    ConflictError,
    FlowRefusedError,
    InvalidError,
    UnavailableError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Outline, Submission
from geartrain_cloud.control_store.names import check_app
from geartrain_cloud.control_store.sources import check_meets_devices, takes_part
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.pages.connections import PageRunner
from geartrain_cloud.pages.questions import bounded
from geartrain_cloud.pages.server import local_only
from geartrain_cloud.platform.config import ControlSection, PlatformConfig
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import allowed, caller_of, check_app_of, identify
from geartrain_cloud.rest.answering import add_headers, error_form, sentences
from geartrain_cloud.rest.audit import AuditLog, noted
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import (
    BODY_BYTES_MAX,
    DeviceBody,
    DevicesQuery,
    EmptyBody,
    KillBody,
    LabelsBody,
    LinesQuery,
    PageQuery,
    ReplayBody,
    RetainBody,
    RowsQuery,
    SubmitBody,
    TokenBody,
    body_of,
    device_options_of,
    key_of,
    options_of,
    query_of,
)
from geartrain_cloud.rest.routes import add_routes, route

if TYPE_CHECKING:
    from geartrain_cloud.control.enrolment import Enrolment

_LOG = logging.getLogger("geartrain.control")
PORT_PREFERRED = 8764
AGENT = "geartrain_edge"
"""The package that a device of the platform's own machine is run by."""

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

    @route("GET", "/status", "viewer", answers.Status)
    async def status(self, request: web.Request) -> Answer:
        """The processes of the platform."""
        return 200, await asyncio.to_thread(self._observer.status)

    @route("GET", "/apps", "viewer", answers.Apps, query=PageQuery, for_app=True)
    async def apps(self, request: web.Request) -> Answer:
        """The apps, by name; to a token for one app only that one."""
        page, only = query_of(request, PageQuery), caller_of(request).app
        found, following = self._store.apps.page(page.limit, page.after, only)
        return 200, {"items": [self._observer.item(one) for one in found], "next": following}

    @route("POST", "/apps", "operator", answers.Submitted, statuses=(202,), body=SubmitBody, for_app=True)
    async def submit(self, request: web.Request) -> Answer:
        """Submit a flow: it is checked where its code is, then the instance is made."""
        body, asked = await body_of(request, SubmitBody)
        check_app_of(caller_of(request), body.name)
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
        fixed = [one for one in body.device_cuts if one.cut != ADAPTIVE]
        wishes = tuple(CutWish(spec=one.cut, is_new=True) for one in fixed)
        checked = await self._load(Check(body.flow, body.cut, options, own, revision, bundle, wishes=wishes))
        for asked_for, found in zip(fixed, checked.found, strict=True):
            if found.refused:
                raise FlowRefusedError(
                    f"the cut {asked_for.cut} of devices {asked_for.devices}: {found.refused}"
                )
        rules = rules_of([(one.devices, one.cut == ADAPTIVE) for one in body.device_cuts], checked.found)
        outline = checked.outline
        if outline is None:
            raise UnavailableError(f"flow {body.flow!r} could not be checked: submit it again")
        self._check_meant(body, outline, checked)

        def work() -> Answer:
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
                    body.retain_s,
                    body.retain_bytes,
                    body.retain_tables_s,
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
                "note": _note(outline.shuffles, sorted(body.device_set.keys() - devices)),
            }

        return self._once(key, asked, work)

    @route("GET", "/apps/{name}", "viewer", answers.AppInfo)
    async def app(self, request: web.Request) -> Answer:
        """All that is known of an app."""
        return 200, self._observer.info(self._store.apps.newest(request.match_info["name"]))

    @route("GET", "/apps/{name}/logs", "viewer", answers.Lines, query=LinesQuery)
    async def logs(self, request: web.Request) -> Answer:
        """What the processes of an app have printed last."""
        lines = query_of(request, LinesQuery).lines
        instance = self._store.apps.newest(request.match_info["name"])
        devices = list(self._store.desired.assigned(instance.instance))
        return 200, {"items": await asyncio.to_thread(self._observer.lines, instance, lines, devices)}

    @route("GET", "/apps/{name}/tables", "viewer", answers.Tables, query=PageQuery)
    async def tables(self, request: web.Request) -> Answer:
        """The tables of an app."""
        instance = self._store.apps.newest(request.match_info["name"])
        page = query_of(request, PageQuery)
        return 200, await asyncio.to_thread(self._observer.tables, instance, page.limit, page.after)

    @route("GET", "/apps/{name}/tables/{table}", "viewer", answers.Rows, query=RowsQuery)
    async def table(self, request: web.Request) -> Answer:
        """Rows of a table: sorted by the fields, or in the order of writing."""
        page = query_of(request, RowsQuery)
        instance = self._store.apps.newest(request.match_info["name"])
        read = partial(self._observer.rows, instance, request.match_info["table"], page.after, page.limit)
        return 200, await asyncio.to_thread(read, as_written=page.order == "written")

    @route("POST", "/apps/{name}/kill", "operator", answers.Accepted, statuses=(202,), body=KillBody)
    async def kill(self, request: web.Request) -> Answer:
        """End an app: with all that its devices have spooled, or at once."""
        body, asked = await body_of(request, KillBody)

        def work() -> Answer:
            found = self._store.apps.kill(request.match_info["name"], body.mode, purge=body.purge)
            return 202, {"name": found.name, "instance": found.instance, "state": found.state.value}

        return self._once(key_of(request), asked, work)

    @route("POST", "/apps/{name}/replay", "operator", answers.Run, statuses=(202,), body=ReplayBody)
    async def replay(self, request: web.Request) -> Answer:
        """Begin a new run of an app's cloud part from the beginning of its log."""
        body, asked = await body_of(request, ReplayBody)
        if body.from_ != "beginning":
            raise InvalidError('from: a replay begins at the log\'s beginning: write "beginning"')

        def work() -> Answer:
            begun = self._store.apps.replay(request.match_info["name"])
            self._updates.check_replays(begun)
            return 202, {"run": begun.run}

        return self._once(key_of(request), asked, work)

    @route("POST", "/apps/{name}/resume", "operator", answers.Accepted, statuses=(202,), body=EmptyBody)
    async def resume(self, request: web.Request) -> Answer:
        """Have an app that has failed go on."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            found = self._store.apps.resume(request.match_info["name"])
            return 202, {"name": found.name, "instance": found.instance, "state": found.state.value}

        return self._once(key_of(request), asked, work)

    @route("POST", "/apps/{name}/retain", "operator", answers.Retained, statuses=(202,), body=RetainBody)
    async def retain(self, request: web.Request) -> Answer:
        """Say how long what an app has sent and made stays; what is absent stays as it was."""
        body, asked = await body_of(request, RetainBody)

        def work() -> Answer:
            name, wanted = request.match_info["name"], (body.age_s, body.bytes, body.tables_age_s)
            found = self._store.apps.retain(name, *wanted)
            return 202, {
                "name": found.name,
                "instance": found.instance,
                "age_s": found.retain_s,
                "bytes": found.retain_bytes,
                "tables_age_s": found.retain_tables_s,
            }

        return self._once(key_of(request), asked, work)

    @route("GET", "/devices", "viewer", answers.Devices, query=DevicesQuery)
    async def devices(self, request: web.Request) -> Answer:
        """The devices, by name."""
        page = query_of(request, DevicesQuery)
        found, following = self._store.devices.page(page.limit, page.after, page.label)
        return 200, {"items": [self._observer.device(one) for one in found], "next": following}

    @route("POST", "/devices", "admin", answers.Added, statuses=(201,), body=DeviceBody)
    async def add_device(self, request: web.Request) -> Answer:
        """Add a device, or take one back that was retired."""
        body, asked = await body_of(request, DeviceBody)
        if body.local and find_spec(AGENT) is None:
            raise ConflictError(
                "the platform's machine cannot run devices: run pip install geartrain-edge there, where "
                "gear up runs, and add it then"
            )

        def work() -> Answer:
            added = self._store.devices.add(body.name, body.labels, local=body.local)
            return 201, {
                "device": self._observer.device(added),
                "file": self._observer.device_file(added),
                "joins": self._enrolment is not None and not added.local,
            }

        return self._once(key_of(request), asked, work)

    @route(
        "POST", "/devices/{device}/token", "admin", answers.Join, statuses=(201,), body=TokenBody, kept=False
    )
    async def token(self, request: web.Request) -> Answer:
        """What the device joins with, once; asked again, there is another. On an open platform only. No
        answer that holds a token is kept, so an Idempotency-Key changes nothing.
        """
        body, _ = await body_of(request, TokenBody)
        return 201, self._open().invite(request.match_info["device"], body.expires_s)

    @route("POST", "/devices/{device}/revoke", "admin", answers.Revoked, body=EmptyBody)
    async def revoke(self, request: web.Request) -> Answer:
        """End the certificates of a device, and the connections that they made. On an open platform only."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            name = self._store.devices.get(request.match_info["device"]).device
            enrolment = self._open()
            return 200, {"name": name, "revoked": enrolment.revoke(name), "broker": enrolment.broker_note}

        return self._once(key_of(request), asked, work)

    def _check_meant(self, body: SubmitBody, outline: Outline, checked: Checked) -> None:
        """Raise `ConflictError` where there has to be a device in service that is to run a flow, and where
        one of them could not run it.
        """
        selector = parse_selector(body.devices)
        meant = [one for one in self._store.devices.every() if takes_part(outline, selector, one)]
        if not body.allow_none:
            check_meets_devices(outline, selector, meant)
        self._updates.check_reaches(body.flow, outline, [one.device for one in meant])
        self._updates.check_waits(body.name, outline, meant, checked)

    def _open(self) -> Enrolment:
        if self._enrolment is None:
            raise ConflictError(
                "this platform is not open to other machines: write its address into platform.toml, "
                '[fleet] address = "HOST", and start gear up again'
            )
        return self._enrolment

    @route("GET", "/devices/{device}", "viewer", answers.DeviceInfo)
    async def device(self, request: web.Request) -> Answer:
        """A device, and the apps that it is to run."""
        return 200, self._observer.device_info(self._store.devices.get(request.match_info["device"]))

    @route("PATCH", "/devices/{device}", "operator", answers.Labelled, body=LabelsBody)
    async def label(self, request: web.Request) -> Answer:
        """Set labels of a device, or take them away."""
        body, asked = await body_of(request, LabelsBody)

        def work() -> Answer:
            found = self._store.devices.label(request.match_info["device"], body.labels)
            return 200, self._observer.labelled(found)

        return self._once(key_of(request), asked, work)

    @route("POST", "/devices/{device}/retire", "admin", answers.Device, statuses=(202,), body=EmptyBody)
    async def retire(self, request: web.Request) -> Answer:
        """Retire a device: no clock waits for it any more, and it runs nothing."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            retired = self._store.devices.retire(request.match_info["device"])
            if self._enrolment is not None:
                self._enrolment.retire(retired.device)
            return 202, self._observer.device(retired)

        return self._once(key_of(request), asked, work)

    @route("POST", "/devices/{device}/accept", "admin", answers.Device, statuses=(202,), body=EmptyBody)
    async def accept(self, request: web.Request) -> Answer:
        """Have a refused device take what is wanted now."""
        _, asked = await body_of(request, EmptyBody)

        def work() -> Answer:
            return 202, self._observer.device(accept(self._store, request.match_info["device"]))

        return self._once(key_of(request), asked, work)

    def _once(self, key: str, asked: str, work: Callable[[], Answer]) -> Answer:
        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer


STRANGERS_NAMED = 5
"""Devices that a note names at the most."""


def _note(shuffles: int, strangers: Sequence[str]) -> str:
    """What a submit says of a flow that cannot share a query, and of settings for devices without the app."""
    said = []
    if shuffles > SHARED_STAGES:
        said.append(
            f"it has {shuffles} shuffles one after another, and the query that flows share has "
            f"{SHARED_STAGES}: it gets a query of its own"
        )
    if strangers:
        named = ", ".join(strangers[:STRANGERS_NAMED]) + (", ..." if len(strangers) > STRANGERS_NAMED else "")
        said.append(f"the settings of --device-set for {named} hold once such a device gets the app")
    return "; ".join(said)


def make_app(
    look: Callable[[str], Bearer],
    wrong: Callable[[str], None],
    audit: AuditLog,
    answering: Iterable[object],
    *,
    local: bool = True,
) -> web.Application:
    """The server's application; look, wrong: as for `identify`; audit: where changes are noted; answering:
    the objects that declare what they answer; `local`: only a loopback name is answered.
    """
    said = sentences(ROOT, BODY_BYTES_MAX)
    before = [said, bounded, *([local_only] if local else []), identify(look, wrong)]
    middlewares = [*before, noted(audit), said, allowed]
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.on_response_prepare.append(add_headers)
    add_routes(app, ROOT, answering)
    return app


async def listen(
    app: web.Application, control: ControlSection, former: int = 0, context: ssl.SSLContext | None = None
) -> tuple[PageRunner, int, list[int]]:
    """Serve `app` as `[control]` says. Port 0 there: `former`, or 8764, or any free one where those are
    taken. context: of TLS, None for HTTP. Returns what has to be cleaned up, the port, and the ports that
    other programs have, each also a warning in the log. Raises `UnavailableError`.
    """
    host, port = control.host, control.port
    runner = PageRunner(app, error_form)
    await runner.setup()
    ports = [port] if port else [*dict.fromkeys([former or PORT_PREFERRED, PORT_PREFERRED]), 0]
    taken: list[int] = []
    for one in ports:
        try:
            await web.TCPSite(runner, host, one, ssl_context=context).start()
            break
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            if not is_taken or one == ports[-1]:
                await runner.cleanup()
                why = "another program listens there" if is_taken else error.strerror
                raise UnavailableError(
                    f"REST cannot listen on {host}:{one}: {why or error}; give another control.port"
                ) from None
            _LOG.warning("another program listens on %s:%d, so REST takes another port", host, one)
            taken.append(one)
    return runner, runner.addresses[0][1], taken


def rest_context(config: PlatformConfig) -> ssl.SSLContext | None:
    """What protects REST, None for nothing; a certificate that is renewed in its files is shown from then on.

    Raises `ConfigError`, and `CertificateError` where the fleet has none.
    """
    control = config.control
    if not control.tls:
        return None
    certificate, key = config.beside(control.certificate), config.beside(control.key)
    if not control.certificate:
        from geartrain_cloud.broker.open_broker import open_fleet  # only who has a fleet needs cryptography
        from geartrain_cloud.certs import SERVER

        paths = open_fleet(config).paths(SERVER, config.fleet.address)
        certificate, key = paths.certificate, paths.key
    return listening_context(str(certificate), str(key), "", "control")
