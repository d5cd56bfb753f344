"""Devices whose apps run from bundles: code comes, fails before its first commit or stays, and goes back.

Beside the other worlds of control lanes, with their troubles. The real parent runs over simulated processes.
Rules: what starts is installed. It is what is wanted, or what has committed last. What runs and has committed
is not stopped for code that is not there. Code that fails is started a bounded number of times. At the end
each device runs what is wanted where that works, and else the code before it, and says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from geartrain.control.app_reasons import AppCode, has_code
from geartrain.control.codec import decode_state, encode_state
from geartrain.control.states import App, State
from geartrain_edge.bundles.choice import TrialPolicy
from geartrain_edge.parent.apps import AppsPolicy
from geartrain_edge.parent.bundled import BundledApps, FetchPolicy
from geartrain_simulation.fleet.lane_fleet import LaneFleet
from geartrain_simulation.machine.clock import SimClock
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import Process
from geartrain_simulation.stores.children import SimRehearsal, SimStarter
from geartrain_simulation.stores.code import (
    KINDS,
    CodeChild,
    Shelf,
    SimBundles,
    SimChoices,
    code_of,
    kind_of,
)

INSTANCE = "app0.1"
TRIAL = TrialPolicy(deadline_s=5.0, tries_max=3, memory_bytes_max=1 << 30)
_SETTLE_S = 150.0


class BundleFleet(LaneFleet):
    """One run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0)
        self.shelves = {name: Shelf() for name in self.names}
        self.starts: Counter[tuple[str, int, str]] = Counter()

    async def _story(self) -> None:
        self.submit(self.names, "good")
        await super()._story()

    async def middle(self) -> None:
        """All is calm: each device gets code that works, then code that may not."""
        for kind in ("good", Random(f"{self.seed}/last").choice(KINDS)):
            self.submit(self.names, kind)
            await asyncio.sleep(_SETTLE_S)
            for name in self.names:
                self._check_settled(name, kind)

    def submit(self, names: list[str], kind: str = "") -> None:
        """Want other code on these devices."""
        self._submits += 1
        random = self.world.random(f"submit/{self._submits}")
        for name in names:
            serial = self.book.serial(name) + 1
            code = code_of(kind or random.choice(KINDS), random.randrange(1 << 30))
            app = App(INSTANCE, "m:f", code=code)
            self.book.want(name, encode_state(State(serial, (app,))), self.world.loop.time())

    def _apps(self, process: Process) -> BundledApps:
        name, shelf = process.node.name, self.shelves[process.node.name]
        bundles = SimBundles(process, shelf, lambda detail: self.fail("bundles in use stay", detail))
        return _WatchedApps(
            self,
            process,
            _Starter(process, self, shelf),
            bundles,
            SimChoices(process, self.platters[name]),
            SimClock(process),
            SimRandomness(process),
            TRIAL,
            FetchPolicy(0.5, 5.0),
            AppsPolicy(look_s=1.0, stop_s=3.0, restart_s_max=5.0),
        )

    # The rules

    def wanted(self, name: str) -> str:
        """The code that the device was told last."""
        applied = self.applied[name]
        states = self.book.ever[name]
        return next(
            (
                state.apps[0].code
                for state in map(decode_state, states)
                if applied and state.serial == applied[-1][1] and state.apps
            ),
            "",
        )

    def check_start(self, process: Process, app: App) -> None:
        """A process of an app is about to start."""
        name = process.node.name
        mark = self.shelves[name].marks.get(app.instance, "")
        if app.code not in (self.wanted(name), mark):
            self.fail("wanted or proved", f"{name} starts {app.code[:8]}: {mark[:8]} has committed")
        if mark and app.code != mark:
            key = (name, self.applied[name][-1][1] if self.applied[name] else 0, app.code)
            self.starts[key] += 1
            if self.starts[key] > TRIAL.tries_max + self.world.nodes[name].crashes + 1:
                self.fail("bounded tries", f"{name} starts {app.code[:8]} for the {self.starts[key]}th time")

    def check_stop(self, process: Process, app: App) -> None:
        """The parent asks a process to end."""
        name = process.node.name
        shelf, wanted = self.shelves[name], self.wanted(name)
        is_proved = shelf.marks.get(app.instance) == app.code
        if is_proved and wanted in shelf.unloadable and process.alive:
            self.fail("untouched", f"{name} ends {app.code[:8]} for {wanted[:8]}, which cannot be loaded")
        if is_proved and wanted not in shelf.installed:
            self.fail("untouched", f"{name} ends {app.code[:8]} for {wanted[:8]}, which it does not have")

    def _check_settled(self, name: str, kind: str) -> None:
        shelf, wanted = self.shelves[name], self.wanted(name)
        runs, mark = shelf.running.get(INSTANCE, ""), shelf.marks.get(INSTANCE, "")
        if runs != mark or (kind == "good") != (runs == wanted):
            raise ViolationError(
                "settled", f"{name} runs {runs[:8]}; {wanted[:8]} is wanted, {mark[:8]} works"
            )
        report = self.book.reports[name]
        reasons = next((app.reasons for app in report.apps if app.instance == INSTANCE), ())
        if has_code(reasons, AppCode.WENT_BACK) != (kind != "good"):
            raise ViolationError("said", f"{name} says {reasons} of {kind} code")
        if len(shelf.installed) > 2:
            raise ViolationError("let go", f"{name} keeps {len(shelf.installed)} bundles")

    def _check_reached(self, name: str) -> None:
        applied = self.applied[name][-1][1] if self.applied[name] else 0
        if applied != self.book.serial(name):
            raise ViolationError("reached", f"{name} has applied {applied} and not {self.book.serial(name)}")


class _WatchedApps(BundledApps):
    """The apps, with the rules looking on."""

    def __init__(self, fleet: BundleFleet, process: Process, *rest: Any) -> None:
        super().__init__(*rest)
        self._fleet, self._process = fleet, process

    async def starting(self, app: App) -> None:
        """A process is about to start."""
        self._fleet.check_start(self._process, app)
        await super().starting(app)


class _Starter(SimStarter):
    """Starts processes that do as their code says."""

    def __init__(self, process: Process, fleet: BundleFleet, shelf: Shelf) -> None:
        name = process.node.name
        super().__init__(process, fleet.live[name], lambda detail: fleet.fail("one process an app", detail))
        self._fleet, self._shelf = fleet, shelf

    def committed(self, instance: str) -> str:
        """As the disk says."""
        return self._shelf.marks.get(instance, "")

    async def rehearse(self, app: App) -> SimRehearsal:
        """One that ends as its code would have it; some code shows only with records what it is."""
        kind, seconds = kind_of(app.code), self._random.uniform(0, 2)
        if app.code not in self._shelf.installed:
            self._fleet.fail("starts => installed", f"{app.code[:8]} is loaded and is not there")
        if kind not in ("mistake", "hangs") or self._random.random() < 0.4:
            return SimRehearsal(self._process, seconds, self._random.choice((0, 0, 0, 1)))
        self._shelf.unloadable.add(app.code)
        return SimRehearsal(self._process, seconds, 2 if kind == "mistake" else None)

    def make(self, app: App) -> CodeChild:
        """A process."""
        if app.code not in self._shelf.installed:
            self._fleet.fail("starts => installed", f"{app.code[:8]} starts and is not there")
        return _Child(self._process, self._live, app, self._shelf, self._fleet)


class _Child(CodeChild):
    """A process whose end is looked at."""

    def __init__(
        self, process: Process, live: dict[str, bool], app: App, shelf: Shelf, fleet: BundleFleet
    ) -> None:
        super().__init__(process, live, app, shelf)
        self._fleet = fleet

    def terminate(self) -> None:
        """It is asked to end."""
        self._fleet.check_stop(self._process, self._app)
        super().terminate()
