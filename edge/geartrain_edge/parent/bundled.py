"""The apps of a joined device: each runs from its bundle, and new code is on trial until its first commit.

Between the control lane and the apps. Guarantees: those of `geartrain_edge.bundles.choice`, durably. What
runs is not touched before the bundle that takes its place is there, whole and checked. One that cannot be had
is asked for again with growing pauses, and the report says why. The simulator runs this class, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

import msgspec
from msgspec.structs import replace

from geartrain.control.app_reasons import app_sentence
from geartrain.control.states import App, AppReport, AppState, State
from geartrain.errors import ConfigError, DiskError
from geartrain.ports import Clock, Randomness
from geartrain_edge.bundles.choice import (
    Choice,
    Chosen,
    TrialPolicy,
    choose,
    failed,
    lived,
    marked,
    short,
    started,
    unlived,
)
from geartrain_edge.bundles.errors import FetchError
from geartrain_edge.bundles.kept_choices import ChoiceStore
from geartrain_edge.errors import StartError
from geartrain_edge.parent.apps import EXIT_ALARM, EXIT_FAILED, Apps, AppsPolicy, End, Process, Starter

_LOG = logging.getLogger("geartrain.parent")
_LOOK_S = 0.5
"""Between two looks at a process that rehearses."""


class FetchPolicy(msgspec.Struct, frozen=True):
    """fetch_s, fetch_s_max: seconds before a bundle is asked for again, doubling up to the second."""

    fetch_s: float = 5.0
    fetch_s_max: float = 600.0


class Bundles(Protocol):
    """The bundles of a device."""

    def has(self, code: str) -> bool:
        """Whether one is there, whole and checked."""
        ...

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        """Have it there, and nothing else but `keep`; an empty code only removes. Raises `FetchError`."""
        ...


class _Fetch:
    """A bundle that is missing: when it is asked for, and why it was not had."""

    def __init__(self, pause_s: float, now_s: float) -> None:
        self.pause_s, self.due_s, self.why = pause_s, now_s, ""


class _Life:
    """A process of an app, as it was seen: since when it makes no step, and whether its start counts."""

    def __init__(self, now_s: float) -> None:
        self.began_s, self.has_lived, self.has_committed = now_s, False, False


class BundledApps:
    """`Told` for the lane, and `Watch` for the apps that it makes; `run` is called once."""

    def __init__(
        self,
        starter: Starter,
        bundles: Bundles,
        store: ChoiceStore,
        clock: Clock,
        randomness: Randomness,
        trial: TrialPolicy | None = None,
        fetching: FetchPolicy | None = None,
        policy: AppsPolicy | None = None,
    ) -> None:
        self._bundles, self._store, self._clock, self._randomness = bundles, store, clock, randomness
        self._trial, self._fetching = trial or TrialPolicy(), fetching or FetchPolicy()
        self._starter = starter
        self.apps = Apps(starter, clock, randomness, policy, self)
        self._choices: dict[str, Choice] = {}
        self._chosen: dict[str, Chosen] = {}
        self._state: State | None = None
        self._fetches: dict[str, _Fetch] = {}
        self._lives: dict[str, _Life] = {}
        self._running: dict[str, str] = {}
        self._failures: dict[str, int] = {}
        self._is_loaded, self._due, self._save_lock = False, asyncio.Event(), asyncio.Lock()
        self._kept: frozenset[str] | None = None
        self._saved: dict[str, Choice] = {}

    @property
    def changed(self) -> asyncio.Event:
        """Set when `reports` has become another."""
        return self.apps.changed

    def apply(self, state: State) -> None:
        """Have these apps from now on; returns at once."""
        self._state = state
        self._fetches.clear()  # what is asked for anew is tried at once
        self._failures.clear()
        self._settle()

    def reports(self) -> tuple[AppReport, ...]:
        """The apps as they are, with what their code lacks."""
        found = {report.instance: report for report in self.apps.reports()}
        for app in self._state.apps if self._state else ():
            chosen = self._chosen.get(app.instance)
            if chosen is None:
                found[app.instance] = AppReport(app.instance, AppState.STARTING, "", app.revision)
                continue
            missing = self._missing(chosen)
            report = found.get(app.instance)
            if chosen.run is None and not (report and report.state is AppState.STOPPING):
                found[app.instance] = AppReport(app.instance, _state_of(app), missing, app.revision)
            elif report is not None and (chosen.reason or missing):
                why = "; ".join(filter(None, (app_sentence(chosen.reason), missing, report.why)))
                reasons = tuple(filter(None, (chosen.reason, *report.reasons)))
                found[app.instance] = replace(report, why=why, reasons=reasons)
        return tuple(found[instance] for instance in sorted(found))

    async def run(self) -> None:
        """Tend the apps until cancelled; then end their processes. Raises `DiskError` where the choices
        cannot be read.
        """
        self._saved = await self._store.load()
        why = "the device or its agent went down with it"
        self._choices = {
            instance: failed(choice, choice.tried, why, self._trial, is_final=False)
            for instance, choice in self._saved.items()
        }
        self._is_loaded = True
        self._settle()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.apps.run())
            group.create_task(self._fetch_all())

    # What the apps ask and say

    async def starting(self, app: App) -> None:
        """As `Watch.starting`."""
        self._running[app.instance] = app.code  # so that it does not go meanwhile
        if not self._bundles.has(app.code):
            raise DiskError(f"bundle {short(app.code)} has gone meanwhile")
        choice = self._choices.get(app.instance, Choice())
        await self._keep(app.instance, started(choice, app))
        self._lives[app.instance] = _Life(self._clock.monotonic_s())

    async def may_follow(self, app: App, process: Process) -> bool:
        """As `Watch.may_follow`: code on trial is loaded beside the process that runs, before that ends."""
        choice = self._choices.get(app.instance, Choice())
        if choice.tried != app.code:
            return True
        why = await self._rehearse(app, process)
        if not self._is_chosen(app):
            return False
        if why:
            _LOG.error("app %s: bundle %s goes back: %s", app.instance, short(app.code), why)
            choice = self._choices.get(app.instance, Choice())
            await self._keep(app.instance, failed(choice, app.code, why, self._trial, is_final=True))
            self._settle()
        return not why

    async def look(self, app: App, process: Process) -> str:
        """As `Watch.look`."""
        health = process.health()
        try:
            await self._note(app, self._lives[app.instance])
        except DiskError as error:  # it is noted at a later look: nothing of the app waits for it
            _LOG.error("app %s: %s", app.instance, error)
        if health.still_s >= self._trial.deadline_s:
            _, why = process.state()
            said = f"it hangs: it has made no step for {health.still_s:.0f} s"
            return f"{said}; {why}" if why else said
        if 0 < self._trial.memory_bytes_max < health.memory_bytes:
            most = self._trial.memory_bytes_max >> 20
            return f"it leaks: it takes {health.memory_bytes >> 20} MiB; {most} are the most"
        return ""

    async def ended(self, app: App, end: End) -> str:
        """As `Watch.ended`."""
        choice = marked(self._choices.get(app.instance, Choice()), self._starter.committed(app.instance))
        if end.why and self._lives[app.instance].has_lived:
            choice = unlived(choice, app.code)
        if end.why:
            choice = failed(choice, app.code, end.why, self._trial, is_final=end.is_final)
        if choice.refused == app.code:
            _LOG.error("app %s: bundle %s goes back: %s", app.instance, short(app.code), end.why)
        await self._keep(app.instance, choice)
        self._settle()
        if not end.is_guilty or app.code in (choice.tried, choice.refused):
            return ""
        self._failures[app.instance] = count = self._failures.get(app.instance, 0) + 1
        if count < self._trial.tries_max:
            return ""
        return (
            f"bundle {short(app.code)} has failed {count} times in a row and is not started again: {end.why}"
        )

    def gone(self, app: App) -> None:
        """As `Watch.gone`."""
        self._running.pop(app.instance, None)
        self._lives.pop(app.instance, None)
        self._settle()  # it may have committed while it was asked to end

    # Inside

    def _is_chosen(self, app: App) -> bool:
        chosen = self._chosen.get(app.instance)
        return chosen is not None and chosen.run == app

    async def _rehearse(self, app: App, running: Process) -> str:
        """Why code cannot be loaded here, "" where it can; what else is wrong is left to its trial."""
        try:
            process = await self._starter.rehearse(app)
        except ConfigError as error:
            return str(error)
        except (DiskError, StartError):
            return ""
        began_s, most_s = self._clock.monotonic_s(), self._trial.deadline_s
        try:
            while (code := process.ended()) is None:
                if running.ended() is not None or not self._is_chosen(app):
                    return ""
                if self._clock.monotonic_s() - began_s >= most_s:
                    return f"it hangs: it was not loaded within {most_s:.0f} s"
                await process.wait(_LOOK_S)
            is_its_fault = code > 0 and code not in (EXIT_FAILED, EXIT_ALARM)
            return (process.sentence() or f"it ended with {code} as it was loaded") if is_its_fault else ""
        finally:
            while process.ended() is None:
                process.kill()
                await self._clock.sleep(_LOOK_S / 10)

    async def _note(self, app: App, life: _Life) -> None:
        """What a process that runs has shown of its code; raises `DiskError`."""
        choice, now_s = self._choices.get(app.instance, Choice()), self._clock.monotonic_s()
        if not life.has_committed and (mark := self._starter.committed(app.instance)) == app.code:
            await self._keep(app.instance, marked(choice, mark))
            life.has_committed = True
            self._settle()
        elif not life.has_lived and now_s - life.began_s >= self._trial.deadline_s:
            await self._keep(app.instance, lived(choice, app.code))
            life.has_lived = True
            self._failures.pop(app.instance, None)

    def _settle(self) -> None:
        """Have what follows from what is wanted, what is here and what was tried."""
        if not self._is_loaded or self._state is None:
            return
        now_s, state = self._clock.monotonic_s(), self._state
        chosen: dict[str, Chosen] = {}
        for app in state.apps:
            if not app.code:
                chosen[app.instance] = Chosen(Choice(), None)
                continue
            choice, mark = self._choices.get(app.instance, Choice()), self._starter.committed(app.instance)
            one = choose(choice, app, self._bundles.has, mark)
            chosen[app.instance] = one
        self._choices = {instance: one.choice for instance, one in chosen.items()}
        missing = {one.fetch.code for one in chosen.values() if one.fetch is not None}
        self._fetches = {code: fetch for code, fetch in self._fetches.items() if code in missing}
        for code in missing - set(self._fetches):
            self._fetches[code] = _Fetch(self._fetching.fetch_s, now_s)
        self._chosen = chosen
        apps = tuple(one.run for one in chosen.values() if one.run is not None)
        self.apps.apply(replace(state, apps=apps))
        self.changed.set()
        self._due.set()

    def _missing(self, chosen: Chosen) -> str:
        """Why the code that is wanted is not here; empty where it is."""
        if chosen.fetch is None:
            return "" if chosen.run else "what is wanted names no bundle: submit the app again"
        fetch = self._fetches.get(chosen.fetch.code)
        return (fetch and fetch.why) or f"bundle {short(chosen.fetch.code)} is being fetched"

    async def _fetch_all(self) -> None:
        """Get what is missing, one after the other, and let go what no app needs."""
        while True:
            self._due.clear()
            now_s = self._clock.monotonic_s()
            waiting = sorted((fetch.due_s, code) for code, fetch in self._fetches.items())
            if waiting and waiting[0][0] <= now_s:
                await self._fetch(waiting[0][1])
            elif self._is_loaded and self._state is not None and self._kept != self._needed():
                await self._fetch("")
            else:
                await self._wait(waiting[0][0] - now_s if waiting else None)

    async def _fetch(self, code: str) -> None:
        needed = self._needed()
        try:
            await self._bundles.fetch(code, needed)
            why = ""
        except FetchError as error:
            why = str(error)
            _LOG.warning("bundles: %s", why)
        self._kept = needed
        fetch = self._fetches.get(code)
        if why and fetch is not None:
            fetch.why = why
            fetch.due_s = self._clock.monotonic_s() + fetch.pause_s * self._randomness.uniform(0.5, 1)
            fetch.pause_s = min(2 * fetch.pause_s, self._fetching.fetch_s_max)
        if code:
            self._settle()

    def _needed(self) -> frozenset[str]:
        """The code that anything here rests on."""
        codes = set(self._running.values())
        for app in self._state.apps if self._state else ():
            codes |= {app.code} | self._choices.get(app.instance, Choice()).codes
        return frozenset(codes - {""})

    async def _wait(self, seconds: float | None) -> None:
        due = asyncio.create_task(self._due.wait())
        sleeps = [] if seconds is None else [asyncio.create_task(self._clock.sleep(max(seconds, 0)))]
        try:
            await asyncio.wait([due, *sleeps], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (due, *sleeps):
                task.cancel()

    async def _keep(self, instance: str, choice: Choice) -> None:
        """Note a choice, durably where it says anything; raises `DiskError`."""
        self._choices[instance] = choice
        async with self._save_lock:
            content = {name: one for name, one in self._choices.items() if one != Choice()}
            if content != self._saved:
                await self._store.save(content)
                self._saved = content


def _state_of(app: App) -> AppState:
    return AppState.STARTING if app.code else AppState.FAILED
