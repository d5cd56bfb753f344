"""One run of one seed, as a value: what the command line, the proofs and the shrinker all work with.

Guarantees: a run raises nothing that a simulated world can raise; it says so. Equal keys give equal digests.
"""

from __future__ import annotations

import logging
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from geartrain_simulation.fleet.bundle_fleet import BundleFleet
from geartrain_simulation.fleet.claiming_fleet import ClaimingFleet
from geartrain_simulation.fleet.crossing_fleet import CrossingFleet
from geartrain_simulation.fleet.denied_fleet import DeniedFleet
from geartrain_simulation.fleet.down_fleet import DownFleet
from geartrain_simulation.fleet.dropping_fleet import DroppingFleet
from geartrain_simulation.fleet.fleet import Fleet, Outcome
from geartrain_simulation.fleet.floor_fleet import FloorFleet
from geartrain_simulation.fleet.lane_fleet import LaneFleet
from geartrain_simulation.fleet.leaving_fleet import LeavingFleet
from geartrain_simulation.fleet.program_fleet import ProgramFleet
from geartrain_simulation.fleet.revision_fleet import RevisionFleet
from geartrain_simulation.fleet.roster_fleet import RosterFleet
from geartrain_simulation.fleet.source_fleet import SourceFleet
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.violation import ViolationError, as_violation
from geartrain_simulation.machine.world import World

TAIL_LINES = 40
_GIT_S_MAX = 10.0


class Simulated(Protocol):
    """One simulated fleet of some kind."""

    world: World
    broker: SimBroker

    def run(self) -> object:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        ...


WORLDS: dict[str, Callable[[int], Simulated]] = {
    "fleet": Fleet,
    "roster": RosterFleet,
    "lane": LaneFleet,
    "down": DownFleet,
    "bundles": BundleFleet,
    "programs": ProgramFleet,
    "floor": FloorFleet,
    "denied": DeniedFleet,
    "crossing": CrossingFleet,
    "leaving": LeavingFleet,
    "claiming": ClaimingFleet,
    "dropping": DroppingFleet,
    "revision": RevisionFleet,
    "source": SourceFleet,
}
"""The kinds of worlds, by their names on the command line."""
USUAL = "fleet"


@dataclass(frozen=True, slots=True)
class Key:
    """What a run depends on beside its seed: the commit (with `+` for a tree that was changed since; empty
    where there is none) and the minor version of Python.
    """

    commit: str
    python: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one run. rule: the one that was broken, empty for none; detail: how, one sentence; digest:
    of its trace; tail: the newest lines of that, where a rule was broken.
    """

    seed: int
    digest: str
    rule: str = ""
    detail: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    crashes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether no rule was broken."""
        return not self.rule


def run_seed(seed: int, kind: str = USUAL, trace_lines: int = 0) -> Result:
    """Run one seed, as it draws its world of one of `WORLDS`."""
    return run_fleet(seed, lambda: WORLDS[kind](seed), trace_lines)


def run_fleet(seed: int, make: Callable[[], Simulated], trace_lines: int = 0) -> Result:
    """Run the fleet that `make` gives; the words of agents and ingest are not logged meanwhile.

    trace_lines: how much of the trace a good run gives, too.
    """
    with quiet():
        fleet = make()
        try:
            outcome = fleet.run()
        except Exception as raised:  # noqa: BLE001 - whatever ends a run is its result
            error, trace = as_violation(raised), fleet.world.trace
            rule, detail = type(error).__name__, str(error)
            if isinstance(error, ViolationError):
                rule, detail = error.rule, error.detail
            lines = max(trace_lines, TAIL_LINES)
            return Result(seed, trace.digest, rule, detail or rule, tail=trace.tail(lines))
    loop, trace = fleet.world.loop, fleet.world.trace
    crashes = sum(node.crashes for node in fleet.world.nodes.values())
    counters = outcome.counters if isinstance(outcome, Outcome) else {}
    figures = (loop.steps, loop.time(), crashes, dict(fleet.broker.counters), counters)
    tail = trace.tail(trace_lines) if trace_lines else []
    return Result(seed, trace.digest, "", "", *figures, tail)


def current_key() -> Key:
    """The key of runs made now, but for the seed."""
    python = ".".join(platform.python_version_tuple()[:2])
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return Key("", python)
    head = _git(git, here, "rev-parse", "--short=12", "HEAD")
    changed = _git(git, here, "status", "--porcelain", "--untracked-files=no")
    return Key(f"{head}+" if head and changed else head, python)


def _git(git: str, folder: Path, *words: str) -> str:
    """What git says, empty where the folder is in no repository."""
    command = [git, "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_S_MAX)
    return done.stdout.strip() if done.returncode == 0 else ""


@contextmanager
def quiet() -> Iterator[None]:
    """Let nothing be logged in the block: agents and ingest say much in a bad world."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
