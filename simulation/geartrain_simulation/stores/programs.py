"""The programs of a device in a world: archives that may not come, and the file of what was chosen.

Guarantees: what is installed outlives kills and losses of power. The choice is written by the steps of the
real file, and a kill may strike between any two. Whoever asks for it is told of a program
that goes while it is needed.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field

import msgspec

from geartrain_edge.bundles.errors import FetchError
from geartrain_edge.programs.choice import INSTALLED, Choice
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process

_FILE, _DRAFT = "programs/choice.json", "programs/.choice.new"
KINDS = ("good", "good", "deaf", "exits", "hangs")
"""What a program does; the installed one is good."""


def program_of(kind: str, number: int) -> str:
    """A program's hash, of which `kind_of` knows the kind."""
    digest = hashlib.sha256(f"{kind}/{number}".encode()).hexdigest()
    return f"{KINDS.index(kind):02x}{digest[2:]}"


def kind_of(program: str) -> str:
    """What the program of this hash does."""
    return "good" if program == INSTALLED else KINDS[int(program[:2], 16)]


@dataclass
class Archives:
    """What a device's disk holds of programs. damaged: installed ones whose files are not right; running: the
    program of the process that lives.
    """

    installed: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    running: str = ""

    def is_whole(self, program: str) -> bool:
        """As the real store: what is damaged loses its name."""
        if program in self.damaged:
            self.damaged.discard(program)
            self.installed.discard(program)
        return program in self.installed


class SimShelf:
    """`Shelf` of one process; `on_wrong` is told of a program that goes while it is needed."""

    def __init__(self, process: Process, archives: Archives, on_wrong: Callable[[str], None]) -> None:
        self._process, self._archives, self._on_wrong = process, archives, on_wrong
        self._random = process.random("programs")
        self.proved: Callable[[], str] = lambda: INSTALLED

    def has(self, code: str) -> bool:
        """Whether it is installed."""
        return code in self._archives.installed

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        """It takes time, and may not come."""
        self._process.point("program.fetch", code[:8])
        for gone in self._archives.installed - {*keep, code}:
            self._archives.installed.discard(gone)
            self._archives.damaged.discard(gone)
            if gone in (self._archives.running, self.proved()):
                tell(self._on_wrong, f"program {gone[:8]} goes while the device rests on it")
        await asyncio.sleep(self._random.uniform(0, 3))
        if code and self._random.random() < 0.3:
            raise FetchError("the platform cannot be reached")
        if code:
            self._archives.installed.add(code)
        self._process.point("program.fetch done", code[:8])


class SimChoiceFile:
    """`ChoiceFile` of one process, with the steps of the real file; on_saved: is told what is durable."""

    def __init__(self, process: Process, platter: Platter, on_saved: Callable[[Choice], None]) -> None:
        self._process, self._platter, self._on_saved = process, platter, on_saved
        self._random = process.random("choice")

    def load(self) -> Choice:
        """What was saved last."""
        return chosen_on(self._platter)

    def save(self, choice: Choice) -> None:
        """A draft, synced, renamed, synced; raises `OSError` where the disk is full."""
        self._process.point("choice.save", repr(choice)[:60])
        if self._random.random() < self._process.node.faults.disk_error:
            raise OSError(errno.ENOSPC, "No space left on device")
        steps: list[Callable[[], None]] = [
            lambda: self._platter.put(_DRAFT, msgspec.json.encode(asdict(choice))),
            lambda: self._platter.sync(_DRAFT),
            lambda: self._platter.rename(_DRAFT, _FILE),
            lambda: self._platter.sync(_FILE),
        ]
        for number, step in enumerate(steps):
            step()
            self._process.point("choice.step", str(number))
        tell(self._on_saved, choice)


def chosen_on(platter: Platter) -> Choice:
    """The choice that a disk holds."""
    if _FILE not in platter.matching(_FILE):
        return Choice()
    return msgspec.json.decode(platter.read(_FILE), type=Choice)
