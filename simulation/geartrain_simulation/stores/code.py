"""The code of a device's apps in a world: bundles that may not come, and processes that do as it says.

Guarantees: what is installed, and what has committed records, outlives kills and losses of power. Whoever
asks for it is told of code that goes while it is in use.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from geartrain.control.states import App, AppState
from geartrain.errors import DiskError
from geartrain_edge.bundles.choice import Choice
from geartrain_edge.bundles.errors import FetchError
from geartrain_edge.bundles.kept_choices import Choices, decode_choices, encode_choices
from geartrain_edge.parent.apps import Health
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process
from geartrain_simulation.stores.children import SimChild

_FILE, _DRAFT = "choices.json", "choices.json.new"
KINDS = ("good", "good", "exits", "mistake", "hangs", "leaks")
"""What code does before its first commit; it goes on well after that."""
LEAK_BYTES = 1 << 40


def code_of(kind: str, number: int) -> str:
    """A code's hash, of which `kind_of` knows the kind."""
    digest = hashlib.sha256(f"{kind}/{number}".encode()).hexdigest()
    return f"{KINDS.index(kind):02x}{digest[2:]}"


def kind_of(code: str) -> str:
    """What code of this hash does."""
    return KINDS[int(code[:2], 16)]


@dataclass
class Shelf:
    """What a device's disk holds of code. installed: bundles; marks: by instance, the code that has
    committed; running: by instance, the code of the process that lives; unloadable: what a rehearsal has
    shown to be so, or was about to.
    """

    installed: set[str] = field(default_factory=set)
    marks: dict[str, str] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    unloadable: set[str] = field(default_factory=set)


class CodeChild(SimChild):
    """One process of an app, which does as its code says."""

    def __init__(self, process: Process, live: dict[str, bool], app: App, shelf: Shelf) -> None:
        super().__init__(process, live, app)
        self._shelf, self._began_s = shelf, process.world.loop.time()
        self._kind = kind_of(app.code)
        shelf.running[app.instance] = app.code
        process.on_end.append(self._forget)
        self._is_shown = False
        later = asyncio.get_running_loop().call_later
        later(self._random.uniform(0.1, 3), self._show)

    def _show(self) -> None:
        """What it does first of all: commit, or fail."""
        if self._code is not None or not self._process.alive:
            return
        self._is_shown = True
        if self._kind == "good":
            self._shelf.marks[self._app.instance] = self._app.code
        elif self._kind in ("exits", "mistake"):
            self._end(7 if self._kind == "exits" else 2)

    def health(self) -> Health:
        """As its kind is."""
        still_s = self._process.world.loop.time() - self._began_s if self._kind == "hangs" else 0.0
        return Health(still_s, LEAK_BYTES if self._kind == "leaks" and self._is_shown else 1)

    def state(self) -> tuple[AppState, str]:
        """It runs."""
        return AppState.RUNNING, ""

    def _end(self, code: int) -> None:
        if self._code is None:
            self._forget()
        super()._end(code)

    def _forget(self) -> None:
        self._shelf.running.pop(self._app.instance, None)


class SimBundles:
    """`Bundles` of one parent process; `on_wrong` is told of a bundle that goes while it is in use."""

    def __init__(self, process: Process, shelf: Shelf, on_wrong: Callable[[str], None]) -> None:
        self._process, self._shelf, self._on_wrong = process, shelf, on_wrong
        self._random = process.random("bundles")
        self.is_away: Callable[[], bool] = lambda: False

    def has(self, code: str) -> bool:
        """Whether it is installed."""
        return code in self._shelf.installed

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        """It takes time, and may not come."""
        self._process.point("bundle.fetch", code[:8])
        for gone in self._shelf.installed - {*keep, code}:
            self._shelf.installed.discard(gone)
            if gone in self._shelf.running.values():
                tell(self._on_wrong, f"bundle {gone[:8]} goes while a process runs it")
        await asyncio.sleep(self._random.uniform(0, 3))
        if code and (self.is_away() or self._random.random() < 0.3):
            raise FetchError("the platform cannot be reached")
        if code:
            self._shelf.installed.add(code)
        self._process.point("bundle.fetch done", code[:8])


class SimChoices:
    """`ChoiceStore` of one process, with the steps of the real file."""

    def __init__(self, process: Process, platter: Platter) -> None:
        self._disk, self._platter = SimDisk(process, platter), platter

    async def load(self) -> dict[str, Choice]:
        """What was saved last, made durable."""
        if _FILE not in await self._disk.list(_FILE):
            return {}
        await self._disk.fsync(_FILE)
        try:
            return decode_choices(await self._disk.read(_FILE))
        except msgspec.DecodeError as error:
            raise DiskError(f"{_FILE} is damaged: {error}") from None

    async def save(self, choices: Choices) -> None:
        """A draft, synced, renamed, synced."""
        await self._disk.write(_DRAFT, encode_choices(choices))
        await self._disk.fsync(_DRAFT)
        await self._disk.rename(_DRAFT, _FILE)
        await self._disk.fsync(_FILE)
