"""The processes of a device's apps, in a world: they run until they are ended, break, or lose their parent.

Guarantees: whoever asks for it is told of a second process of an app beside the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from geartrain.control.states import App, AppState, Wanted
from geartrain.errors.reason import Reason
from geartrain_edge.parent.apps import Health
from geartrain_edge.parent.measuring import Spent
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process


def lacks_of(instance: str) -> tuple[str, ...]:
    """The sources that a device lacks of an instance: of every other app one."""
    return ("gps",) if instance.startswith("app1") else ()


class SimChild:
    """One process of an app. `live`: the device's, by instance; False for one that has just been struck."""

    def __init__(self, process: Process, live: dict[str, bool], app: App) -> None:
        self._process, self._live, self._app = process, live, app
        self._random = process.random(f"child/{app.instance}")
        self._code: int | None = None
        self._drains = app.wanted is Wanted.DRAIN
        self._over = asyncio.Event()
        self._looks = 0
        live[app.instance] = True
        process.on_end.append(self._gone)

    def _gone(self) -> None:
        if self._code is None:
            self._live.pop(self._app.instance, None)
            self._code = -9

    def ended(self) -> int | None:
        """Its exit code once it is over."""
        if self._code is None and not self._live.get(self._app.instance, False):
            self._end(1)
        return self._code

    async def wait(self, seconds: float) -> None:
        """Return after so long, or when it has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    def state(self) -> tuple[AppState, str]:
        """It runs."""
        return (AppState.RUNNING if self._code is None else AppState.ENDED), ""

    def reasons(self) -> tuple[Reason, ...]:
        """It runs as it is to."""
        return ()

    def lacks(self) -> tuple[str, ...] | None:
        """Nothing at first, then what it lacks."""
        self._looks += 1
        return None if self._looks == 1 else lacks_of(self._app.instance)

    def health(self) -> Health:
        """It does well."""
        return Health()

    def spent(self) -> Spent | None:
        """More each time, of whatever its world's clock says has passed."""
        now_s = asyncio.get_running_loop().time()
        return Spent(int(100 * now_s), 0.1 * now_s, now_s, 1 << 28)

    def sentence(self) -> str:
        """Nothing is to be said."""
        return ""

    def speaks(self) -> bool:
        """Its exit codes are those of an agent."""
        return True

    def terminate(self) -> None:
        """It ends soon, or does not care."""
        self._process.point("child.terminate", self._app.instance)
        if self._random.random() < 0.8:
            asyncio.get_running_loop().call_later(self._random.uniform(0, 1), self._end, 0)

    def kill(self) -> None:
        """It ends now."""
        self._process.point("child.kill", self._app.instance)
        self._end(-9)

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._live.pop(self._app.instance, None)
            self._over.set()


class SimRehearsal(SimChild):
    """A process beside those of apps that ends with `code` after some seconds, or never of itself."""

    def __init__(self, process: Process, seconds: float, code: int | None) -> None:
        super().__init__(process, {}, App("rehearsal", "m:f"))
        if code is not None:
            asyncio.get_running_loop().call_later(seconds, self._end, code)


class SimStarter:
    """`Starter` of one parent process. `on_double` is told of an app that is started beside itself."""

    def __init__(self, process: Process, live: dict[str, bool], on_double: Callable[[str], None]) -> None:
        self._process, self._live, self._on_double = process, live, on_double
        self._random = process.random("starter")

    async def start(self, app: App) -> SimChild:
        """Start a process."""
        self._process.point("child.start", app.instance)
        await self._process.pause(self._random, self._process.node.faults)
        if app.instance in self._live:
            tell(self._on_double, f"{app.instance} is started beside itself")
        child = self.make(app)
        self._process.point("child.start done", app.instance)
        return child

    async def rehearse(self, app: App) -> SimRehearsal:
        """A process that ends well, soon."""
        return SimRehearsal(self._process, self._random.uniform(0, 2), 0)

    def make(self, app: App) -> SimChild:
        """A process, which lives from now on."""
        return SimChild(self._process, self._live, app)

    def committed(self, instance: str) -> str:
        """Nothing is committed here."""
        return ""

    async def drain(self, instance: str) -> None:
        """Nothing drains here."""

    async def purge(self, instance: str) -> None:
        """Nothing is kept here."""
