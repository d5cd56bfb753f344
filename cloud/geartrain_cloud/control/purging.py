"""`/devices/{device}/purge`: what a device sent is erased while the platform runs.

Beside every record's path. Ingest and the Spark host end for as long as files are worked on. Then apps make
their tables anew without the device. Where they share a query, all of its apps do so in another one, since
Spark's checkpoint keeps what it ever had.

Guarantees: nothing is changed unless all of it can be done, but for the apps that are to stay as they are.
Each step may be done again after a kill at any moment. Ingest and the host come back when the files are done,
and when that has failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from geartrain.errors import GeartrainError, LedgerError
from geartrain.fleet.selectors import is_cloud_device
from geartrain.ports import Clock
from geartrain.revision import Revision
from geartrain_cloud.control.history_files import HistoryFiles, given
from geartrain_cloud.control.hosting import read_hosted
from geartrain_cloud.control.pausing import LOOK_S, STOP_S, Pauses, not_ended
from geartrain_cloud.control.purge_files import STOPPED, erase_on_disk, has_log, is_quiet
from geartrain_cloud.control_store.apps import in_the_way
from geartrain_cloud.control_store.errors import ConflictError, ControlError, UnavailableError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Instance, Planned, State, Wanted
from geartrain_cloud.control_store.purges import Purge
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import StateError
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group_file import has_stages
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.versions import Versions
from geartrain_cloud.ingest.erasure import Erased, erasable, flows_with
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.held_files import are_held
from geartrain_cloud.platform.runs import runs_with_tables, served_run
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import caller_of
from geartrain_cloud.rest.requests import PurgeBody, body_of, key_of
from geartrain_cloud.rest.routes import route

if TYPE_CHECKING:
    from geartrain_cloud.control.enrolment import Enrolment

_LOG = logging.getLogger("geartrain.control")

PAUSES = "purge"
"""For what ingest and the Spark host stand still."""
_COPIED = "a backup is being made, which would hold what is to be erased"
_OF_DATABASE = (
    (
        "the write-ahead log of the database that holds tables: set wal_recycle = off there, then run SELECT "
        "pg_switch_wal() and CHECKPOINT as often as pg_wal has files"
    ),
    "the log file of this database, and copies of both",
)
_ALWAYS_LEFT = (
    "backups, and copies that gear fetch has made",
    "the lines that control has printed, and the free room of the disk itself",
)


class Purging:
    """What erases devices from one platform; `round` is called every so often."""

    def __init__(
        self,
        store: ControlStore,
        config: PlatformConfig,
        clock: Clock,
        changed: Callable[[], None],
        pauses: Pauses,
        enrolment: Enrolment | None = None,
    ) -> None:
        """`changed`: called after each change; enrolment: of a platform that is open to other machines."""
        self._pauses = pauses
        self._store, self._config, self._places = store, config, config.places
        self._host = HostPlaces(self._places.spark)
        self._clock, self._changed, self._enrolment = clock, changed, enrolment
        self._work: asyncio.Future[Erased] | None = None
        self._since_s, self._looked_s = clock.monotonic_s(), 0.0

    # What a person asks for

    @route("POST", "/devices/{device}/purge", "admin", answers.Purge, statuses=(200, 202), body=PurgeBody)
    async def purge(self, request: web.Request) -> Answer:
        """Erase what a device has sent from log, tables and state, and retire it. Ingest and Spark pause for
        it. Apps make their tables anew, also those that share a query with one; those in `leave` keep them.
        With `dry_run`, only say what would go.
        """
        body, asked = await body_of(request, PurgeBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        device = self._store.devices.get(request.match_info["device"])
        if is_cloud_device(device.device, device.labels):
            raise ConflictError(
                f"{device.device} is the platform's own device: kill the apps that it reads for"
            )
        found, flows = await asyncio.to_thread(self._found, device.device)
        meant = [
            one
            for one in self._store.apps.every()
            if one.instance in flows or _has_history(one, device.device)
        ]
        beside = [one for one in self._beside(meant) if not {one.instance, one.name} & set(body.leave)]
        kept = [one for one in meant if {one.instance, one.name} & set(body.leave)]
        obstacles = [why for one in meant if one not in kept for why in self._against(one, device.device)]
        wanted = Purge(
            device.device,
            *("stopping", self._clock.now_us(), 0, caller_of(request).name),
            {one.instance: 0 for one in [*meant, *beside] if one not in kept},
            tuple(one.instance for one in kept),
            *(found.rows, found.quarantined, ""),
        )
        if body.dry_run:
            return 200, self._told(wanted, obstacles) | {"step": "planned"}
        if obstacles:
            raise ConflictError(
                "; ".join([*obstacles, "or name these apps in leave, and they stay as they are"])
            )

        if are_held(self._places.folder):
            raise ConflictError(f"{_COPIED}: wait for it to end")

        def work() -> Answer:
            made = self._store.purges.begin(wanted)
            if self._enrolment is not None:
                self._enrolment.retire(made.device)
            return 202, self._told(made)

        answer = self._store.answers.once(key, asked, work)
        self._since_s = self._clock.monotonic_s()
        self._changed()
        return answer

    @route("GET", "/devices/{device}/purge", "viewer", answers.Purge)
    async def standing(self, request: web.Request) -> Answer:
        """How far the last purge of a device is."""
        device = self._store.devices.get(request.match_info["device"]).device
        found = self._store.purges.of(device)
        if found is None:
            raise ConflictError(f"nothing of device {device} was erased: see gear device purge --help")
        return 200, self._told(found)

    def _found(self, device: str) -> tuple[Erased, set[str]]:
        if not has_log(self._places):
            return Erased(), set()
        try:
            return erasable(self._places.log, device), flows_with(self._places.log, device)
        except LedgerError as error:
            raise UnavailableError(str(error)) from None

    def _beside(self, meant: list[Instance]) -> Iterator[Instance]:
        """The apps that share a query with one of these and can begin anew in another: it goes then."""
        if not any(one.isolation == "shared" for one in meant):
            return
        sharing = self._in_queries([*self._host.shared(), *self._grown()])
        for one in self._store.apps.every():
            runs = one.state in (State.STARTING, State.RUNNING) and one.wanted is Wanted.RUNNING
            if one.instance in sharing and one not in meant and runs and not any(self._against(one, "")):
                yield one

    def _in_queries(self, groups: Sequence[str]) -> set[str]:
        """The instances that these queries have, as the host's files say."""
        found = set[str]()
        for group in groups:
            with suppress(HostError):  # the host removes it just now
                newest = Versions(self._host.group(group).versions).newest()
                found |= {one.flow for one in newest.flows.values()} if newest is not None else set()
        return found

    def _former(self) -> list[str]:
        """The queries that apps have shared before, which keep state and are still there."""
        return [*self._host.shared()[:-1], *self._grown()]

    def _grown(self) -> list[str]:
        """The queries of apps that had no shuffle, of which one has some now."""
        return [name for name in self._host.direct() if has_stages(self._host.group(name))]

    def _shares(self, purge: Purge) -> bool:
        """Whether an app that is replayed has a query with others."""
        return any(
            one.isolation == "shared" for one in self._store.apps.every() if one.instance in purge.runs
        )

    def _against(self, instance: Instance, device: str) -> Iterator[str]:
        """Why the tables of an app cannot be made anew without a device, a sentence each."""
        app = f"app {instance.name}"
        newest = self._store.apps.newest(instance.name)
        if newest.instance != instance.instance:
            yield f"{instance.instance} was replaced by {newest.instance}, so it cannot be replayed"
        elif instance.wanted is Wanted.KILLED:
            yield f"{app} was killed, so it has no replay: remove it with gear kill {instance.name} --purge"
        if _has_history(instance, device):
            yield f"{app} was given history of {device}: remove it with gear kill {instance.name} --purge"
        if instance.outline.sends:
            yield f"{app} sends to devices, and a replay cannot take that back"
        if self._store.revisions.next_of(instance) is not None:
            yield f"{app} is to go over to another revision: wait until that is in force"
        elif self._store.revisions.canary_of(instance) is not None:
            yield in_the_way(instance.name)
        for sink, kind in other_sinks([*self._store.revisions.in_force_before(instance), instance]):
            yield f"{app} writes to {sink} by {kind}, which a replay does not write anew"
        if LogReader(self._places.log).removed(instance.instance):
            yield f"retention has removed the beginning of the log of {app}, so it cannot be replayed"

    def _told(self, purge: Purge, obstacles: list[str] | None = None) -> dict[str, Any]:
        left = [
            f"{name}: its tables, sinks, state and history, which stay as they are" for name in purge.kept
        ]
        holds = purge.step != "done" or self._store.desired.still_holds(purge.device)
        if holds and not self._store.devices.get(purge.device).local:
            left.append(f"the disk of {purge.device}, until it is heard of and has removed what it holds")
        is_before = purge.step not in ("replaying", "done")
        groups = [*self._host.shared(), *self._grown()] if is_before else self._former()
        sharing = self._in_queries(groups) - purge.runs.keys()
        if sharing and (self._shares(purge) or not is_before):
            said = "Spark's checkpoint of the query that apps shared before, as long as it has"
            left.append(f"{said} {', '.join(sorted(sharing))}")
        if self._config.tables.store:
            left += _OF_DATABASE
        return {
            "device": purge.device,
            "step": purge.step,
            "asked_us": purge.asked_us,
            "done_us": purge.done_us or None,
            "asked_by": purge.asked_by,
            "rows": purge.rows,
            "quarantined": purge.quarantined,
            "replays": sorted(purge.runs),
            "waits_for": self._waits_for(purge),
            "leaves": list(purge.kept),
            "stops": list(STOPPED),
            "obstacles": obstacles or [],
            "not_reached": [*left, *_ALWAYS_LEFT],
            "why": purge.why,
        }

    # What is done

    def round(self) -> None:
        """Bring the purge that is under way one step on; raises `StoreError`."""
        now_s = self._clock.monotonic_s()
        if self._work is None and now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        purge = self._store.purges.under_way()
        waits = purge is not None and self._is_copied(purge)
        self._pause(STOPPED if purge is not None and purge.step == "stopping" and not waits else ())
        if waits:
            self._since_s = now_s
        if purge is None or waits:
            return
        if purge.step == "replaying":
            if not self._waits_for(purge):
                self._finish(purge)
        elif self._work is not None:
            if self._work.done():
                self._take(purge, self._work)
                self._work = None
        elif is_quiet(self._places, purge.device):
            work = asyncio.to_thread(erase_on_disk, self._places, purge.device, anew=self._shares(purge))
            self._work = asyncio.ensure_future(work)
        elif now_s - self._since_s > STOP_S:
            self._fail(purge, not_ended(STOPPED))

    def _is_copied(self, purge: Purge) -> bool:
        """Whether a backup is being made, which began before the purge."""
        return purge.step == "stopping" and self._work is None and are_held(self._places.folder)

    def _pause(self, names: tuple[str, ...]) -> None:
        """Have `gear up` run all processes but these."""
        self._pauses.want(PAUSES, names)

    def _take(self, purge: Purge, work: asyncio.Future[Erased]) -> None:
        """What was erased is out of all files: apps are replayed from now on."""
        try:
            work.result()
        except StateError as error:  # somebody has taken a file meanwhile: once more
            if self._clock.monotonic_s() - self._since_s > STOP_S:
                self._fail(purge, str(error))
            return
        except (GeartrainError, OSError) as error:
            self._fail(purge, str(error))
            return
        runs = dict(purge.runs)
        with self._store.database.change():
            for name in runs:
                instance = self._store.apps.find(name)
                if instance is None:
                    continue  # it was purged meanwhile
                try:
                    runs[name] = self._store.apps.replay(instance.name).run
                except ControlError as error:
                    _LOG.error(
                        "%s keeps its tables, with what was erased of %s: %s", name, purge.device, error
                    )
            if self._store.devices.get(purge.device).local:
                self._store.purges.has_heard(purge.device)
            self._store.purges.forget_said(purge.device, self._names(purge))
            self._store.purges.replays(purge.device, runs)
            HistoryFiles(self._places.histories).keep(
                {path for one in self._store.apps.every() for _, path in given(one)}
            )
        self._pause(())
        self._changed()

    def _names(self, purge: Purge) -> list[str]:
        return [one.name for one in self._store.apps.every() if one.instance in purge.runs]

    def _waits_for(self, purge: Purge) -> list[str]:
        """What a backup, or apps, have still to do, a sentence each."""
        if purge.step != "replaying":
            return [_COPIED] if self._is_copied(purge) else []
        there = {one.instance: one for one in self._store.apps.every()}
        said, waiting = read_hosted(self._places)[1], list[str]()
        for name, run in purge.runs.items():
            first = self._places.tables(name)
            if name not in there or not run or (served_run(first) >= run and is_alone(first, run)):
                continue
            why = there[name].why or (said[name].why if name in said else "")
            waiting.append(
                f"run {run} of {name} has still to take the place of the former one{why and f': {why}'}"
            )
        former = self._former()
        if former and not self._in_queries(former) - {name for name, run in purge.runs.items() if run}:
            waiting.append("the query that apps shared before has still to go, with what it keeps")
        return waiting

    def _finish(self, purge: Purge) -> None:
        left = [name for name, run in purge.runs.items() if not run]
        with self._store.database.change():
            self._store.purges.forget_said(purge.device, self._names(purge))
            why = f"not replayed: {', '.join(left)}: they were killed or changed meanwhile" if left else ""
            self._store.purges.enter(purge.device, "done", done_us=self._clock.now_us(), why=why)
        self._store.database.compact()

    def _fail(self, purge: Purge, why: str) -> None:
        _LOG.error("what device %s sent could not be erased: %s", purge.device, why)
        self._store.purges.enter(purge.device, "failed", done_us=self._clock.now_us(), why=why)
        self._pause(())


def _has_history(instance: Instance, device: str) -> bool:
    return any(whose == device for whose, _ in given(instance))


def other_sinks(revisions: Iterable[Instance | Planned]) -> list[tuple[str, str]]:
    """The sinks in the data centre that a replay does not write anew: step and class.

    revisions: those that an app has run, since a replay goes through each.
    """
    found = {
        (step.id, str(step.options.get("sink"))): None
        for one in revisions
        for step in (Revision.from_json(one.outline.document).steps if one.outline.document else ())
        if step.kind == "sink" and step.tier == "cloud"
        if step.options.get("sink") != "Table" and step.id not in one.outline.anew
    }
    return list(found)


def is_alone(first: Path, run: int) -> bool:
    """Whether no tables are left of runs before this one; first: where those of the first lie."""
    return all(one >= run for one in runs_with_tables(first))
