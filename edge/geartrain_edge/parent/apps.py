"""The apps of a device: one process for each, as the desired state wants it.

Told by the control lane. Guarantees: an app has one process at a time; a desired state that changes nothing
of an app leaves its process alone. A process that breaks is started again with growing pauses. One that ended
with a mistake in its configuration, or must not be started again, is left alone and reported with its
sentence, until the app changes. One app never waits for another. The simulator runs this class, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec.structs import replace

from geartrain.control.limits import LANE_LIMITS
from geartrain.control.states import App, AppReport, AppState, State, Wanted, reported_cut
from geartrain.errors import ConfigError, DiskError
from geartrain.errors.reason import Reason
from geartrain.ports import Clock, Randomness
from geartrain_edge.errors import StartError
from geartrain_edge.parent.measuring import Meter, Spent

_LOG = logging.getLogger("geartrain.parent")

EXIT_FAILED, EXIT_CONFIG, EXIT_ALARM = 1, 2, 3
"""How an agent ends that says why: what broke may be healed by a new start, is not, or must not have one.
Without a word of its own, the code is that of a user's step.
"""


class AppsPolicy(msgspec.Struct, frozen=True):
    """Times in seconds. look_s: between two looks at how an app is; restart_s, restart_s_max: the pause
    before a process is started again, doubling up to the second; steady_s: one that ran so long was a good
    one; stop_s: one that is asked to end and does not is killed after so long.
    """

    look_s: float = 0.5
    restart_s: float = 0.5
    restart_s_max: float = 60.0
    steady_s: float = 60.0
    stop_s: float = 10.0


class Health(msgspec.Struct, frozen=True):
    """A process as it is seen. still_s: for so long it has made no step, seconds; memory_bytes: what it
    takes, 0 where that is not known.
    """

    still_s: float = 0.0
    memory_bytes: int = 0


class End(msgspec.Struct, frozen=True):
    """How a process came to nothing. why: a sentence, empty where nothing was wrong; is_final: a new start
    does not help; is_guilty: its code did it, and not the disk or the network.
    """

    why: str = ""
    is_final: bool = False
    is_guilty: bool = False


class Process(Protocol):
    """A process of one app."""

    def ended(self) -> int | None:
        """Its exit code once it is over with all that it has started; None while it runs."""
        ...

    async def wait(self, seconds: float) -> None:
        """Return after so long, or sooner when it may have ended."""
        ...

    def state(self) -> tuple[AppState, str]:
        """What it says of itself, and a sentence; the last word of one that is over, too."""
        ...

    def reasons(self) -> tuple[Reason, ...]:
        """Why it does not run as it is to, for programs."""
        ...

    def lacks(self) -> tuple[str, ...] | None:
        """The sources of the app that the device does not have; None until the process has said."""
        ...

    def health(self) -> Health:
        """How it does; of one that is over, how it did."""
        ...

    def spent(self) -> Spent | None:
        """What it has taken since it began, and what the device has left; None where that is not known."""
        ...

    def sentence(self) -> str:
        """Why it ended, in its own words; empty for none."""
        ...

    def speaks(self) -> bool:
        """Whether the agent itself has said why it ends: its exit code is its own then."""
        ...

    def terminate(self) -> None:
        """Ask it to end after its commit at hand."""
        ...

    def kill(self) -> None:
        """End it and all that it has started, now."""
        ...


class Starter(Protocol):
    """Starts processes; all raise `ConfigError`, `DiskError` or `StartError`."""

    async def start(self, app: App) -> Process:
        """Write the app's configuration and start its process, which drains if that is wanted."""
        ...

    async def rehearse(self, app: App) -> Process:
        """Start a process that only loads the app's flow, beside the one that runs; it ends with 0 if it can
        be loaded.
        """
        ...

    def committed(self, instance: str) -> str:
        """The code with which the app has last committed records, or was about to; empty for none."""
        ...

    async def drain(self, instance: str) -> None:
        """Ask the app's process to drain."""
        ...

    async def purge(self, instance: str) -> None:
        """Remove what the app has kept; nothing where there is nothing."""
        ...


class Watch(Protocol):
    """Looks after the processes of all apps."""

    async def starting(self, app: App) -> None:
        """A process of `app` is about to start; raises `DiskError`."""
        ...

    async def may_follow(self, app: App, process: Process) -> bool:
        """Whether `app` is to take the place of what `process` runs, which goes on until this returns; where
        not, another one is wanted by then.
        """
        ...

    async def look(self, app: App, process: Process) -> str:
        """Look at one that runs; a sentence where it is to be ended for that, else empty."""
        ...

    async def ended(self, app: App, end: End) -> str:
        """One has ended by itself or for what `look` said; a sentence where the app is to be left alone for
        that, else empty. Raises `DiskError`.
        """
        ...

    def gone(self, app: App) -> None:
        """The process is gone, for whatever reason."""
        ...


class Unwatched:
    """`Watch` that looks at nothing: code that is installed is what it is."""

    async def starting(self, app: App) -> None:
        """As `Watch.starting`."""

    async def may_follow(self, app: App, process: Process) -> bool:
        """As `Watch.may_follow`."""
        return True

    async def look(self, app: App, process: Process) -> str:
        """As `Watch.look`."""
        return ""

    async def ended(self, app: App, end: End) -> str:
        """As `Watch.ended`."""
        return ""

    def gone(self, app: App) -> None:
        """As `Watch.gone`."""


class Apps:
    """The apps of one device; `run` is called once and ends when it is cancelled, with all processes."""

    def __init__(
        self,
        starter: Starter,
        clock: Clock,
        randomness: Randomness,
        policy: AppsPolicy | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch or Unwatched()
        self._starter, self._clock, self._randomness = starter, clock, randomness
        self._policy = policy or AppsPolicy()
        self._wanted: dict[str, App] = {}
        self._purged: set[str] = set()
        self._states: dict[str, AppReport] = {}
        self._logged: dict[str, str] = {}
        """By app: the last sentence of a failure that was logged."""
        self._lacks: dict[str, tuple[str, ...]] = {}
        self._meters: dict[str, Meter] = {}
        self._woken: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told, self.changed = asyncio.Event(), asyncio.Event()
        self.counters = {"processes_started": 0, "processes_broken": 0, "processes_killed": 0}

    def apply(self, state: State) -> None:
        """Have these apps from now on; returns at once."""
        self._wanted = {app.instance: app for app in state.apps}
        self._purged |= set(state.purged)
        for woken in self._woken.values():
            woken.set()
        self._told.set()

    def reports(self) -> tuple[AppReport, ...]:
        """The apps as they are, those that are wanted and those that are not gone yet."""
        wanted = self._wanted.values()
        fresh = [AppReport(app.instance, AppState.STARTING, "", app.revision) for app in wanted]
        found = {report.instance: report for report in fresh} | self._states
        return tuple(found[instance] for instance in sorted(found))

    async def run(self) -> None:
        """Tend the apps until cancelled; then end their processes."""
        try:
            while True:
                await self._told.wait()
                self._told.clear()
                for name in [name for name, task in self._tasks.items() if task.done()]:
                    self._tasks.pop(name).result()  # raises the error of a defect
                for instance in sorted({*self._wanted, *self._purged} - set(self._tasks)):
                    self._woken[instance] = asyncio.Event()
                    self._tasks[instance] = asyncio.create_task(self._tend(instance))
        finally:
            await self._end(self._tasks.values())

    async def _end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _tend(self, instance: str) -> None:
        """One app, from when it is first wanted until it is gone."""
        try:
            failures = 0
            while (app := self._wanted.get(instance)) is not None:
                began_s = self._clock.monotonic_s()
                former = self._why(instance) if failures else ""
                self._say(app, AppState.STARTING, former)
                is_over = await self._live(app, former)
                if is_over:
                    await self._until_other(app)
                    failures = 0
                    continue
                if self._wanted.get(instance) != app:
                    failures = 0
                    continue
                if self._clock.monotonic_s() - began_s >= self._policy.steady_s:
                    failures = 0
                failures += 1
                most_s = min(self._policy.restart_s * 2 ** min(failures - 1, 20), self._policy.restart_s_max)
                await self._pause(instance, most_s * self._randomness.uniform(0.5, 1))
            if instance in self._purged:
                await self._purge(instance)
        finally:
            self._woken.pop(instance, None)
            self._states.pop(instance, None)
            self._logged.pop(instance, None)
            self._lacks.pop(instance, None)
            self._meters.pop(instance, None)
            self.changed.set()
            self._told.set()  # it may be wanted again by now

    async def _purge(self, instance: str) -> None:
        self._purged.discard(instance)
        try:
            await self._starter.purge(instance)
        except DiskError as error:
            _LOG.error("app %s: %s", instance, error)

    async def _live(self, app: App, former: str) -> bool:
        """One process of the app; whether the app is over as it is wanted now. former: how the one before it
        failed, which is said until this one has run for `steady_s`.
        """
        fault, began_s = "", self._clock.monotonic_s()
        try:
            await self._watch.starting(app)
            process = await self._start(app)
        except (ConfigError, DiskError, StartError) as error:
            self._watch.gone(app)
            is_over = isinstance(error, ConfigError)
            self._say_failed(app, str(error), is_final=is_over)
            return is_over
        self.counters["processes_started"] += 1
        meter = self._meters[app.instance] = Meter()
        try:
            while (code := process.ended()) is None:
                wanted = self._wanted.get(app.instance)
                if wanted != app:
                    if wanted is None or replace(app, wanted=wanted.wanted) != wanted or _runs(wanted):
                        if wanted is not None and not await self._watch.may_follow(wanted, process):
                            continue
                        self._say(app, AppState.STOPPING, "")
                        return False
                    app = wanted
                    await self._starter.drain(app.instance)
                state, why = process.state()
                self._note_lacks(app, process)
                now_s = self._clock.monotonic_s()
                if state is AppState.RUNNING and meter.is_due(now_s):
                    meter.take(process.spent(), now_s)
                if now_s - began_s >= self._policy.steady_s:
                    former = ""
                # It has ended once its process has: till then its spool is open.
                state = AppState.DRAINING if state is AppState.ENDED else state
                self._say(app, state, why or former, process.reasons())
                if fault := await self._watch.look(app, process):
                    self.counters["processes_broken"] += 1
                    break
                await self._look(app.instance, process)
            if fault:
                process.kill()  # what hangs hears no signal, and a commit is whole or not at all
                await self._stop(app, process)
            return await self._judge(app, process, code, fault)
        except DiskError as error:
            self._say_failed(app, str(error), is_final=False)
            return False
        finally:
            self._meters.pop(app.instance, None)
            try:
                await self._stop(app, process)
            finally:
                self._watch.gone(app)

    async def _start(self, app: App) -> Process:
        """Start the process of an app. If this is cancelled, the process is started all the same and then
        asked to end: a process that the parent's end kills cannot say how it stands.
        """
        starting = asyncio.ensure_future(self._starter.start(app))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._end_start(app, starting)
            raise

    async def _end_start(self, app: App, starting: asyncio.Future[Process]) -> None:
        """End a process that is being started, once it is there; after `stop_s` give it up."""
        until_s = self._clock.monotonic_s() + self._policy.stop_s
        while not starting.done():
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                starting.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([starting], timeout=left_s if left_s > 0 else None)
        if not starting.cancelled() and starting.exception() is None:
            await self._stop(app, starting.result())

    def _note_lacks(self, app: App, process: Process) -> None:
        if (lacks := process.lacks()) is not None:
            self._lacks[app.instance] = lacks[: LANE_LIMITS.sources_max]

    async def _judge(self, app: App, process: Process, code: int | None, fault: str) -> bool:
        """Say how a process has ended; whether it is to be left at that. fault: for what it was ended."""
        state, _ = process.state()
        self._note_lacks(app, process)  # it may have come to its end before anybody had looked
        if not fault and code == 0 and state is AppState.ENDED:
            self._say(app, AppState.ENDED, "")
            return True
        how = f"ended with {code}" if code is None or code >= 0 else f"was killed by signal {-code}"
        sentence = process.sentence()
        is_own = process.speaks()
        is_final = not fault and is_own and code in (EXIT_CONFIG, EXIT_ALARM)
        if is_final:
            why = sentence or f"its agent {how}"
        else:
            why = fault or f"its agent {how}{': ' if sentence else ''}{sentence}"
        is_guilty = bool(fault) or not (is_own and code in (EXIT_CONFIG, EXIT_ALARM, EXIT_FAILED))
        is_of_spool = is_own and code == EXIT_ALARM  # whatever the code that runs
        end = End("" if is_of_spool else why, is_final or bool(fault), is_guilty)
        if final := await self._watch.ended(app, end):
            why, is_final = final, True
        if is_final:
            self._say_failed(app, why, is_final=True)
            return True
        if not fault:
            self.counters["processes_broken"] += 1
            why = f"its agent {how} and is started again{': ' if sentence else ''}{sentence}"
        self._say_failed(app, why, is_final=False)
        return False

    async def _stop(self, app: App, process: Process) -> None:
        """Have a process end, whoever asks: it is gone when this returns, however often it is cancelled."""
        cancelled: asyncio.CancelledError | None = None
        asked_s = self._clock.monotonic_s()
        if process.ended() is None:
            process.terminate()
        is_late = False
        while process.ended() is None:
            if self._clock.monotonic_s() - asked_s >= self._policy.stop_s:
                if not is_late:
                    is_late = True
                    stop_s = self._policy.stop_s
                    _LOG.warning("app %s has not ended within %g s and is killed", app.instance, stop_s)
                self.counters["processes_killed"] += 1
                process.kill()
            try:
                await process.wait(self._policy.look_s)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _look(self, instance: str, process: Process) -> None:
        """Wait until the process may have ended, another app is wanted, or it is time to look again."""
        ends = asyncio.create_task(process.wait(self._policy.look_s))
        woken = self._woken[instance]
        wakes = asyncio.create_task(woken.wait())
        try:
            await asyncio.wait([ends, wakes], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends.cancel()
            wakes.cancel()
        woken.clear()

    async def _pause(self, instance: str, seconds: float) -> None:
        """Wait so long, or until the desired state comes anew."""
        woken = self._woken[instance]
        woken.clear()
        sleeps = asyncio.create_task(self._clock.sleep(seconds))
        wakes = asyncio.create_task(woken.wait())
        try:
            await asyncio.wait([sleeps, wakes], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeps.cancel()
            wakes.cancel()

    async def _until_other(self, app: App) -> None:
        """Wait until something else is wanted than this."""
        while self._wanted.get(app.instance) == app:
            woken = self._woken[app.instance]
            woken.clear()
            if self._wanted.get(app.instance) == app:
                await woken.wait()

    def _why(self, instance: str) -> str:
        report = self._states.get(instance)
        return "" if report is None else report.why

    def _say(self, app: App, state: AppState, why: str, reasons: tuple[Reason, ...] = ()) -> None:
        report = AppReport(
            *(app.instance, state, why, app.revision, self._lacks.get(app.instance, ())),
            reported_cut(app.own_cut or app.cut),
            meter.measured if (meter := self._meters.get(app.instance)) else None,
            reasons,
        )
        if self._states.get(app.instance) != report:
            self._states[app.instance] = report
            self.changed.set()

    def _say_failed(self, app: App, why: str, *, is_final: bool) -> None:
        """Say that it could not go on, and log that once: an app that fails again and again for one reason
        must not fill a device's log. is_final: it is not started again by itself.
        """
        self._say(app, AppState.FAILED if is_final else AppState.STARTING, why)
        if self._logged.get(app.instance) != why:
            self._logged[app.instance] = why
            _LOG.warning("app %s: %s", app.instance, why)


def _runs(app: App) -> bool:
    return app.wanted is Wanted.RUN
