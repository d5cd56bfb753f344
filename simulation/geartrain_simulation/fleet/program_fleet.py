"""Devices whose own program is exchanged over the air: it works, is deaf, ends at once or hangs.

Beside the other worlds of control lanes, with their troubles. The real choice and `Upgrade` run; what the
launcher does around them is done here, with its deadline. Rules: what starts is whole. A program on trial is
started a bounded number of times, kills and losses of power counted. Only one that was heard is proved. What
a device rests on stays on its disk. At the end it runs what is wanted where that works, the installed
program, too, and else the one before, and says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from geartrain.control.codec import encode_state
from geartrain.control.states import INSTALLED_PROGRAM, App, RunningProgram, State
from geartrain.errors import GeartrainError
from geartrain_edge.parent.bundled import FetchPolicy
from geartrain_edge.parent.lane import DeviceLane
from geartrain_edge.parent.upgrading import Upgrade
from geartrain_edge.programs import choice as choosing
from geartrain_edge.programs.choice import INSTALLED, Choice
from geartrain_simulation.fleet.lane_fleet import LaneFleet
from geartrain_simulation.machine.clock import SimClock
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import Process, StoppedError
from geartrain_simulation.stores.lanes import SimKept
from geartrain_simulation.stores.programs import (
    KINDS,
    Archives,
    SimChoiceFile,
    SimShelf,
    chosen_on,
    kind_of,
    program_of,
)

DEADLINE_S, GRACE_S, TRIES_MAX = 25.0, 5.0, 2
_SETTLE_S = 200.0
_APP = App("app0.1", "m:f")


class ProgramFleet(LaneFleet):
    """One run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0)
        self.archives = {name: Archives() for name in self.names}
        self.wishes = dict.fromkeys(self.names, "")
        self.starts: Counter[tuple[str, str]] = Counter()

    async def middle(self) -> None:
        """All is calm: each device gets a program that works, then one that may not, then what was installed
        on it.
        """
        for kind in ("good", Random(f"{self.seed}/last").choice(KINDS), "installed"):
            self.submit(self.names, kind)
            await asyncio.sleep(_SETTLE_S)
            for name in self.names:
                self._check_settled(name, kind)

    def submit(self, names: list[str], kind: str = "") -> None:
        """Want another program on these devices."""
        self._submits += 1
        random = self.world.random(f"submit/{self._submits}")
        for name in names:
            drawn = kind or random.choice((*KINDS, "installed", ""))
            program = program_of(drawn, random.randrange(1 << 30)) if drawn in KINDS else ""
            program = INSTALLED_PROGRAM if drawn == "installed" else program
            state = State(self.book.serial(name) + 1, (_APP,), program=program)
            self.book.want(name, encode_state(state), self.world.loop.time())
            if not kind and random.random() < 0.2:
                self.archives[name].damaged |= self.archives[name].installed

    # A device

    async def _device(self, process: Process) -> None:
        name = process.node.name
        archives = self.archives[name]
        file = SimChoiceFile(process, self.platters[name], lambda choice: self._saved(name, choice))
        trial = _Alarm(process)
        program = self._launch(name, file, trial)
        archives.running = program
        process.point("program", f"{program[:8]} {kind_of(program)}")
        if kind_of(program) == "exits":
            await asyncio.sleep(process.random("exits").uniform(0, 2))
            raise StoppedError("it ends")
        if kind_of(program) == "hangs":
            await asyncio.Event().wait()
        apps, clock, chance = self._apps(process), SimClock(process), SimRandomness(process)
        shelf = SimShelf(process, archives, lambda detail: self.fail("in use stay", detail))
        shelf.proved = lambda: file.load().proved
        policy = FetchPolicy(0.5, 5.0)
        upgrade = _Watched(
            self, name, program, shelf, file, trial, apps.reports, apps.changed, clock, chance, policy
        )
        code = "" if program == INSTALLED else program
        runs = RunningProgram("0.0", code, "3.11 x86_64")
        net, kept = self.net_of(process), SimKept(process, self.platters[name])
        lane = DeviceLane(name, net, kept, apps, clock, chance, runs, None, upgrade)
        stopped: StoppedError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(apps.run())
                group.create_task(_until_replaced(upgrade))
                if kind_of(program) != "deaf":
                    group.create_task(lane.run())
        except* GeartrainError as errors:
            stopped = StoppedError(str(errors.exceptions[0]))
        if stopped is not None:
            raise stopped

    def _launch(self, name: str, file: SimChoiceFile, trial: _Alarm) -> str:
        """What the launcher does: the program that starts now, counted before."""
        archives, before = self.archives[name], file.load()
        choice, program = choosing.next_start(before, archives.is_whole, TRIES_MAX)
        is_tried = program == choice.tried
        try:
            if choice != before:
                file.save(choice)
        except OSError:
            is_whole = before.proved != INSTALLED and archives.is_whole(before.proved)
            program, is_tried = before.proved if is_whole else INSTALLED, False
        if program != INSTALLED and (program not in archives.installed or program in archives.damaged):
            self.fail("starts => whole", f"{name} starts {program[:8]}, which is not there whole")
        if is_tried:
            trial.set()
            self.starts[name, program] += 1
            if self.starts[name, program] > TRIES_MAX:
                count = self.starts[name, program]
                self.fail("bounded tries", f"{name} starts {program[:8]} on trial for the {count}th time")
        return program

    # The rules

    def wanted(self, name: str, program: str) -> None:
        """A device is told to run a program."""
        if program != self.wishes[name]:
            self.wishes[name] = program
            for key in [key for key in self.starts if key[0] == name]:
                del self.starts[key]

    def _saved(self, name: str, choice: Choice) -> None:
        if kind_of(choice.proved) != "good":
            self.fail("proved => heard", f"{name} takes {kind_of(choice.proved)} program for one that works")
        self.starts.pop((name, choice.proved), None)  # should its files be damaged, it is tried anew

    def _check_settled(self, name: str, kind: str) -> None:
        choice, report, wanted = chosen_on(self.platters[name]), self.book.reports[name], self.wishes[name]
        runs = self.archives[name].running
        is_good = kind in ("good", "installed")
        if choice.tried or runs != choice.proved or is_good != (runs == wanted):
            raise ViolationError("settled", f"{name} runs {runs[:8]}; {wanted[:8]} is wanted, {choice}")
        said = INSTALLED if report.program_code == "" else report.program_code
        if said != runs or report.program_went_back == is_good or bool(report.program_why) == is_good:
            raise ViolationError(
                "said", f"{name} says {report.program_why!r} of {kind} program, runs {said[:8]}"
            )

    def _check_reached(self, name: str) -> None:
        """What was wanted last may be on trial yet; `middle` has looked at what is settled."""


class _Alarm:
    """`TrialTime` of one process: it is killed when its time is over."""

    def __init__(self, process: Process) -> None:
        self._process, self._until_s = process, 0.0

    def set(self) -> None:
        """The process is on trial from now on."""
        self._until_s = self._process.world.loop.time() + DEADLINE_S
        self._process.world.later(DEADLINE_S + GRACE_S, self._ring)

    def left_s(self) -> float:
        """As the launcher has set it."""
        left_s = self._until_s - self._process.world.loop.time()
        return max(left_s, 0.001) if self._until_s else 0.0

    def disarm(self) -> None:
        """It is not on trial any more."""
        self._until_s = 0.0

    def _ring(self) -> None:
        if self._until_s and self._process.alive:
            self._process.node.crash()


class _Watched(Upgrade):
    """The upgrade, with the rules looking on."""

    def __init__(self, fleet: ProgramFleet, name: str, *rest: object) -> None:
        super().__init__(*rest)  # type: ignore[arg-type]
        self._fleet, self._name = fleet, name

    def want(self, program: str) -> None:
        """A program is wanted."""
        self._fleet.wanted(self._name, program)
        super().want(program)


async def _until_replaced(upgrade: Upgrade) -> None:
    await upgrade.run()
    raise StoppedError("another program takes its place")
