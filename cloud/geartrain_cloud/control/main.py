"""`gear-control --config platform.toml`: the control store, its REST and the reconciler as a process.

It stands beside every record's path: with it gone, devices, ingest and Spark go on as they were told.
Guarantees: one process holds the store. A mistake in the configuration is one sentence and code 2. After
SIGTERM or Ctrl-C it ends with 0 or 130. Whatever kills it, the next one goes on where the store stands.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geartrain.adapters.files import write_private
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import ServiceNotes, noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.cancelling import end_task
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain_cloud.control.adaptive_rounds import AdaptiveRounds
from geartrain_cloud.control.agents import Agents
from geartrain_cloud.control.aging import Aging
from geartrain_cloud.control.backfilling import Backfills
from geartrain_cloud.control.backups import Backups
from geartrain_cloud.control.canary_rounds import CanaryRounds
from geartrain_cloud.control.certificates import Certificates
from geartrain_cloud.control.clones import Clones
from geartrain_cloud.control.cutting import Cuts
from geartrain_cloud.control.device_questions import DeviceQuestions
from geartrain_cloud.control.explaining import Explanations
from geartrain_cloud.control.history_files import HistoryFiles
from geartrain_cloud.control.hosting import HostReport, read_hosted
from geartrain_cloud.control.inspecting import Inspection
from geartrain_cloud.control.lane import ControlLane
from geartrain_cloud.control.lane_store import StoreOfLane
from geartrain_cloud.control.loading import Loader
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.pausing import Pauses
from geartrain_cloud.control.purging import Purging
from geartrain_cloud.control.questions import Questions
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control.repairing import Repairs
from geartrain_cloud.control.scaling import Scales
from geartrain_cloud.control.secret_requests import SecretRequests
from geartrain_cloud.control.server import Api, listen, make_app, rest_context
from geartrain_cloud.control.spool_policies import SpoolPolicies
from geartrain_cloud.control.streaming import Streams
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.secrets import SecretRounds
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import CertificateError, PageError
from geartrain_cloud.hosting.questions import QuestionFolder
from geartrain_cloud.pages.token import read_token
from geartrain_cloud.platform.config import PlatformConfig, read_platform
from geartrain_cloud.platform.door import read_door, write_door
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.rest.access import Tokens
from geartrain_cloud.rest.audit import Auditing, AuditLog
from geartrain_cloud.rest.openapi import Contract
from geartrain_cloud.rest.wrong_tokens import WrongTokens

if TYPE_CHECKING:
    from geartrain_cloud.control.enrolment import Enrolment
    from geartrain_cloud.control.renewing import ServerCertificate
    from geartrain_cloud.pages.connections import PageRunner

    Round = Purging | Trust | Enrolment | SecretRounds | Streams | WrongTokens | ServerCertificate

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
ANSWERING = (
    *(Api, Streams, Trust, Updates, Agents, Explanations, Questions, Cuts, Scales, Backfills),
    *(Tokens, SecretRequests, Auditing, Inspection, Repairs, Certificates, Backups, Purging),
)
"""Whose methods answer REST, beside its contract."""
ROUND_S = 0.2
"""How long the reconciler waits for a change before it looks again at what is reported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run control until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="gear-control", description="Serve REST, and run what is wanted.")
    parser.add_argument("--config", metavar="FILE.toml", type=Path, help="the platform's configuration")
    parser.add_argument("--state", metavar="DIR", type=Path, help="the platform's state folder")
    options = parser.parse_args(arguments)
    log_to_stderr()
    os.umask(0o077)
    try:
        was_interrupted = asyncio.run(serve(read_platform(options.config, options.state)))
    except (CertificateError, ConfigError, PageError) as error:
        return _said(error, EXIT_CONFIG)
    except GeartrainError as error:
        return _said(error, EXIT_FAILED)
    return EXIT_INTERRUPTED if was_interrupted else EXIT_OK


def _said(error: GeartrainError, code: int) -> int:
    sys.stderr.write(f"gear-control: {printable(' '.join(str(error).split()))}\n")
    return code


async def serve(config: PlatformConfig) -> bool:
    """Serve until a signal comes; whether it was Ctrl-C. Raises `GeartrainError`."""
    async with noted_service() as notes:
        return await _serve(config, notes)


async def _serve(config: PlatformConfig, notes: ServiceNotes) -> bool:
    places, clock = config.places, SystemClock()
    store, audit = ControlStore(places.control, clock.now_us), AuditLog(places.audit, clock.now_us)
    changed, stopped, url = asyncio.Event(), asyncio.Event(), list[str]()
    signals = EndSignals(stopped.set, notes.stopping)
    try:
        enrolment = _enrolment(config, store, clock)
        reconciler, clones = Reconciler(store, config, clock.now_us), Clones(clock.monotonic_s)
        observer = Observer(
            store, config, reconciler, lambda: url[0], clock.monotonic_s, clones.sentence, enrolment
        )
        trust = Trust(places.bundles, store)
        has_joined = enrolment.has_joined if enrolment else None

        def host(instance: str) -> HostReport:
            return read_hosted(places)[1].get(instance, HostReport())

        given = store, Loader(in_postgres=bool(config.tables.store)), trust, changed.set, host, clock.now_us
        updates = Updates(*given, has_joined, places.log, SpoolPolicies(store, config.local))
        cuts = Cuts(store, updates.load, *given[2:])
        api = Api(store, updates.load, observer, changed.set, updates, enrolment)
        asking = DeviceQuestions(clock)
        questions = Questions(store, QuestionFolder(places.questions), clock, asking, host)
        rounds, secret = _secrets(store, places, changed.set, enrolment, clock)
        streams, pauses = _streams(store, places), Pauses(places, clock)
        purging = Purging(store, config, clock, changed.set, pauses, enrolment)
        beside = _beside_the_path(config, store, clock, pauses)
        own = [Scales(store, changed.set, host), Agents(store, trust, changed.set, has_joined)]
        own += [_backfills(store, updates, config, changed.set), Explanations(store, config, trust)]
        own += [Tokens(store.bearers, store.answers), secret, Auditing(audit), purging, questions, cuts]
        answering = [api, trust, updates, streams, *beside, *own, Contract(ANSWERING)]
        look, context = partial(store.bearers.look, own=open_token(places)), rest_context(config)
        wrong = WrongTokens(audit, clock.monotonic_s)
        app = make_app(look, wrong.came, audit, answering, local=context is None)
        app.on_shutdown.append(streams.end)
        runner, port, taken = await listen(app, config.control, _former_port(places), context)
        url.append(config.rest_url(port))
        try:
            trust.round()
            reconciler.round()
            devices = await _listen_for_devices(config, enrolment, trust)
            write_door(config, url[0], taken)
            following = _follow_lane(store, config, clock, clones, asking)
            works = (following, *_works(config, store, cuts, audit, clock, changed.set))
            lane = asyncio.ensure_future(_together(*works))
            try:
                due: list[Round | None] = [purging, trust, enrolment, rounds, streams, wrong]
                due.append(_renewing(config, store, clock, enrolment))
                await _reconcile(reconciler, observer, changed, stopped, lane, due)
            finally:
                await end_task(lane)
                if devices is not None:
                    await devices.cleanup()
        finally:
            await runner.cleanup()
    finally:
        store.close()
        audit.close()
    return signals.was_interrupted


def _works(
    config: PlatformConfig,
    store: ControlStore,
    cuts: Cuts,
    audit: AuditLog,
    clock: SystemClock,
    changed: Callable[[], None],
) -> list[Coroutine[Any, Any, None]]:
    """What goes on by itself as long as control runs."""
    return [
        Aging(store, config, clock).run(),
        AdaptiveRounds(store, cuts, audit, clock, changed).run(),
        CanaryRounds(store, config.places, audit, clock, changed).run(),
    ]


def _beside_the_path(
    config: PlatformConfig, store: ControlStore, clock: SystemClock, pauses: Pauses
) -> list[object]:
    """What looks into files of the platform, puts them right and copies them; raises `StoreError`."""
    store.announcements.tell_left("log", "certificate", "backup")
    backups = Backups(config, store, clock.now_us)
    backups.look()
    return [
        Inspection(config, store, clock.now_us),
        Repairs(config, store, pauses),
        Certificates(config, store),
        backups,
    ]


def _streams(store: ControlStore, places: PlatformPlaces) -> Streams:
    """Who follows events, and what these tell beside changes of the store."""

    def hosted() -> dict[str, HostReport]:
        return read_hosted(places)[1]

    def processes() -> dict[str, Any]:
        return read_report(places.processes)

    return Streams(store.events, hosted, store.bearers.check, processes=processes)


def _enrolment(config: PlatformConfig, store: ControlStore, clock: SystemClock) -> Enrolment | None:
    """What an open platform needs besides; raises `CertificateError`."""
    if not config.is_open:
        return None
    from geartrain_cloud.control.enrolment import Enrolment  # only who has a fleet needs cryptography

    def tell(what: str, device: str) -> AbstractContextManager[object]:
        said = {"what": what, "kind": "device", "name": device}
        return store.announcements.announced("certificate", device, said)

    return Enrolment(config, store.devices, clock.now_us, tell)


def _renewing(
    config: PlatformConfig, store: ControlStore, clock: SystemClock, enrolment: Enrolment | None
) -> ServerCertificate | None:
    """What renews the certificate of an open platform's address."""
    if enrolment is None:
        return None
    from geartrain_cloud.control.renewing import ServerCertificate

    tell = partial(store.announcements.announced, "certificate", "")
    address = config.fleet.address
    return ServerCertificate(enrolment.fleet, address, clock.now_us, clock.monotonic_s, tell)


def _backfills(
    store: ControlStore, updates: Updates, config: PlatformConfig, changed: Callable[[], None]
) -> Backfills:
    """What takes history for apps; what was taken before is named where it lies now."""
    folder = config.places.histories
    store.find_histories(folder)
    return Backfills(store, updates, HistoryFiles(folder), changed, is_open=config.is_open)


def _secrets(
    store: ControlStore,
    places: PlatformPlaces,
    changed: Callable[[], None],
    enrolment: Enrolment | None,
    clock: SystemClock,
) -> tuple[SecretRounds, SecretRequests]:
    """What brings secrets to devices, and what takes them from REST."""

    def unknown(device: str, certificate: bytes) -> bytes:
        raise CertificateError(f"device {device} has joined another platform")

    point_of = unknown if enrolment is None else enrolment.point_of
    return (
        SecretRounds(store.secrets, store.database, places.secrets_of, point_of, clock.monotonic_s),
        SecretRequests(store.secrets, store.answers, changed, places.secrets_of),
    )


async def _listen_for_devices(
    config: PlatformConfig, enrolment: Enrolment | None, trust: Trust
) -> PageRunner | None:
    """Serve devices on other machines, where there may be such; raises `UnavailableError`."""
    if enrolment is None:
        return None
    from geartrain_cloud.control.device_listener import (
        DeviceRoute,
        device_context,
        join_routes,
        listen_for_devices,
        make_device_app,
    )

    address, port = config.fleet.address, config.fleet.device_port
    served = [DeviceRoute("GET", path, answer) for path, answer in trust.served()]
    app = make_device_app([*join_routes(enrolment), *served], enrolment.check)
    return await listen_for_devices(app, device_context(enrolment.fleet, address), address, port)


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """All at once, until one raises."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


async def _follow_lane(
    store: ControlStore, config: PlatformConfig, clock: SystemClock, clones: Clones, asking: DeviceQuestions
) -> None:
    """Tell devices what is wanted, ask and hear them, once there is a broker; raises what the store does."""
    broker = None
    while broker is None:
        with suppress(ConfigError):  # gear up has not started one yet
            broker = config.broker_now("control")
        if broker is None:
            await clock.sleep(ROUND_S)
    net = AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context)
    lane = ControlLane(StoreOfLane(store), net, clock, SystemRandomness(), clones=clones)
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run_alone())
        group.create_task(asking.run(net, SystemRandomness()))


async def _reconcile(
    reconciler: Reconciler,
    observer: Observer,
    changed: asyncio.Event,
    stopped: asyncio.Event,
    lane: asyncio.Future[None],
    rounds: Sequence[Round | None],
) -> None:
    ends = asyncio.ensure_future(stopped.wait())
    try:
        while not stopped.is_set():
            news = asyncio.ensure_future(changed.wait())
            await asyncio.wait([news, ends], timeout=ROUND_S, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            changed.clear()
            if lane.done():
                await lane  # raises: without it no device is told anything
            if not stopped.is_set():
                reconciler.round()
                for one in rounds:
                    if one is not None:
                        one.round()
                observer.look()
    finally:
        await end_task(ends)


def _former_port(places: PlatformPlaces) -> int:
    """The port of the control before, so that clients find this one; 0 for none."""
    door = read_door(places)
    return 0 if door is None else door.port


def open_token(places: PlatformPlaces) -> str:
    """The bearer token of the state folder, made where there is none yet; raises `PageError`."""
    if not places.token.exists():
        try:
            write_private(places.token, secrets.token_urlsafe(32) + "\n")
        except OSError as error:
            raise PageError(f"{places.token} cannot be written: {error.strerror or error}") from None
    return read_token(places.token)


if __name__ == "__main__":
    sys.exit(main())
