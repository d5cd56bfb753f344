"""Another program for a device: it is fetched and checked, takes this one's place, and is on trial there.

Between the control lane and the launcher. Guarantees: those of `geartrain_edge.programs.choice`, durably.
What runs goes on until the program that takes its place is there, whole and checked. Where that cannot be
had, or the choice cannot be kept, it is tried again with growing pauses. A program that cannot run here is
not tried again until another is asked for. The report says why.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from typing import Protocol

from geartrain.control.states import AppReport, AppState
from geartrain.errors import DiskError
from geartrain.ports import Clock, Randomness
from geartrain_edge.bundles.errors import FetchError, RefusedError
from geartrain_edge.parent.bundled import FetchPolicy
from geartrain_edge.programs.choice import (
    INSTALLED,
    Choice,
    asked,
    noted,
    other_asked,
    passed,
    short,
    spared,
)

_LOG = logging.getLogger("geartrain.parent")

LOOK_S = 0.5
"""Between two looks at the apps of a program on trial, seconds."""
_WORK = frozenset((AppState.RUNNING, AppState.DRAINING, AppState.ENDED))


class Shelf(Protocol):
    """The programs of a device."""

    def has(self, code: str) -> bool:
        """Whether one is there."""
        ...

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        """Have it there, and nothing else but `keep`; an empty code only removes. Raises `FetchError`, and
        `RefusedError` for one that cannot be had at all.
        """
        ...


class ChoiceFile(Protocol):
    """Where a device keeps what it has chosen."""

    def load(self) -> Choice:
        """What was saved last."""
        ...

    def save(self, choice: Choice) -> None:
        """Replace it, durably; raises `OSError`."""
        ...


class TrialTime(Protocol):
    """The deadline of a program on trial, which the launcher has set."""

    def left_s(self) -> float:
        """Seconds until this program is to give up, 0 for no deadline."""
        ...

    def disarm(self) -> None:
        """Take the deadline away."""
        ...


class Upgrade:
    """`Programs` for the lane; `run` is called once, and returns when this process is to begin anew."""

    def __init__(
        self,
        running: str,
        shelf: Shelf,
        file: ChoiceFile,
        time: TrialTime,
        reports: Callable[[], Collection[AppReport]],
        changed: asyncio.Event,
        clock: Clock,
        randomness: Randomness,
        policy: FetchPolicy | None = None,
    ) -> None:
        """running: the hash of this program, or `INSTALLED`; reports: how the apps are; changed: is set when
        `why` or `went_back` has become another.
        """
        self.running, self.why, self.went_back = running, "", False
        self._shelf, self._file, self._time = shelf, file, time
        self._reports, self._changed = reports, changed
        self._clock, self._randomness, self._policy = clock, randomness, policy or FetchPolicy()
        self._choice = file.load()
        self._wanted, self._is_heard = "", False
        self._unfit: dict[str, str] = {}
        self._news = asyncio.Event()

    # What the lane says

    def want(self, program: str) -> None:
        """As `Programs.want`."""
        if program != self._wanted:
            self._wanted = program
            self._say("")
        self._news.set()

    def heard(self) -> None:
        """As `Programs.heard`."""
        if not self._is_heard:
            self._is_heard = True
            self._news.set()

    # What the process says

    def spare(self) -> None:
        """This process ends because it was asked to: its start does not count against a program on trial."""
        if self._choice.tried:
            self._keep(spared(self._choice, self.running))

    async def run(self) -> None:
        """Tend to the program; returns when this process is to begin anew with what is chosen."""
        if self.running == self._choice.tried and not await self._try():
            return
        self._time.disarm()
        await self._tidy()
        while True:
            self._news.clear()
            if self._wanted and await self._change(self._wanted):
                return
            await self._news.wait()

    # Inside

    async def _try(self) -> bool:
        """Whether this program, which is on trial, has reached the platform with its apps in time."""
        _LOG.info("%s is on trial", short(self.running))
        until_s = self._clock.monotonic_s() + (self._time.left_s() or math.inf)
        while not (self._is_heard and not self._idle() and self._keep(passed(self._choice, self.running))):
            if self._clock.monotonic_s() >= until_s:
                why = self._lacking()
                _LOG.error("%s: %s", short(self.running), why)
                self._keep(noted(self._choice, self.running, why))
                return False
            await self._clock.sleep(LOOK_S)
        _LOG.info("%s has shown that it works", short(self.running))
        return True

    def _lacking(self) -> str:
        """What a program whose time is over has not shown."""
        if not self._is_heard:
            return "it did not reach the platform in time"
        if idle := self._idle():
            return f"{', '.join(idle)} did not run in time"
        return self.why  # it cannot be kept that it works

    def _idle(self) -> list[str]:
        """The apps that ran with the program before this one and do not run now, though they are wanted."""
        return [
            one.instance
            for one in self._reports()
            if one.instance in self._choice.ran and one.state not in _WORK
        ]

    async def _change(self, program: str) -> bool:
        """Have `program` in this one's place as soon as it can be; whether this process is to begin anew."""
        pause_s = self._policy.fetch_s
        while True:
            try:
                return await self._prepare(program)
            except RefusedError as error:
                self._unfit = {program: str(error)}
                self._say(str(error))
                return False
            except (FetchError, DiskError) as error:
                self._say(str(error))
            if await self._other_within(pause_s * self._randomness.uniform(0.5, 1)):
                return False
            pause_s = min(2 * pause_s, self._policy.fetch_s_max)

    async def _prepare(self, program: str) -> bool:
        """Have `program` here and chosen; whether this process is to begin anew with it.

        Raises `FetchError` and `DiskError`.
        """
        choice = other_asked(self._choice, program)
        if program == self.running:
            choice = asked(choice, program, ())  # one that it was to make room for is not asked for any more
        if choice != self._choice:
            self._save(choice)
        if program == self.running:
            return False
        if program == choice.refused:
            why = f"{short(program)} went back to {short(choice.proved)}: {choice.why}"
            self._say(why, went_back=True)
            return False
        if program in self._unfit:
            self._say(self._unfit[program])
            return False
        if program != INSTALLED and not self._shelf.has(program):
            self._say(self.why or f"{short(program)} is being fetched")
            await self._shelf.fetch(program, {*choice.codes, self.running, program} - {INSTALLED})
        if self._wanted != program:
            return False
        after = asked(choice, program, tuple(one.instance for one in self._reports() if one.state in _WORK))
        if after == choice and program != choice.tried:
            self._say(f"{short(program)} cannot be started")
            return False
        self._save(after)  # where that cannot be, the launcher could count no start and would come back here
        self._say(f"{short(program)} takes the place of {short(self.running)}")
        _LOG.info("%s", self.why)
        return True

    async def _tidy(self) -> None:
        """Let go the programs that nothing rests on any more."""
        try:
            await self._shelf.fetch("", {*self._choice.codes, self.running} - {INSTALLED})
        except FetchError as error:
            _LOG.warning("programs: %s", error)

    async def _other_within(self, seconds: float) -> bool:
        """Whether something else is asked for within so long."""
        wakes = asyncio.create_task(self._news.wait())
        sleeps = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait([wakes, sleeps], return_when=asyncio.FIRST_COMPLETED)
            return wakes.done()
        finally:
            wakes.cancel()
            sleeps.cancel()

    def _keep(self, choice: Choice) -> bool:
        """Note what is new; where that cannot be, say so and go on as it was."""
        try:
            if choice != self._choice:
                self._save(choice)
        except DiskError as error:
            self._say(str(error))
            return False
        return True

    def _save(self, choice: Choice) -> None:
        """Note it, durably; raises `DiskError`."""
        try:
            self._file.save(choice)
        except OSError as error:
            reason = error.strerror or str(error)
            why = f"what programs this device runs cannot be kept: {reason}: make room on its disk"
            _LOG.error("%s", why)
            raise DiskError(why) from None
        self._choice = choice

    def _say(self, why: str, *, went_back: bool = False) -> None:
        if (why, went_back) != (self.why, self.went_back):
            self.why, self.went_back = why, went_back
            self._changed.set()
