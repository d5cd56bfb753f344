"""The launcher: what `gear-agent --device FILE` does first. It starts the program that the device is to run.

Before the parent of a device's agents. It is of the installed program, imports next to nothing, and
takes its place by `exec`: the process keeps its number, its service manager and its memory. Guarantees:
whatever is wrong with a program from over the air, the device starts. One on trial has a deadline by
`alarm(2)`, which outlives `exec`: a program that hangs in its first import is ended, too. A start counts,
durably, before it is made.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geartrain
from geartrain_edge.programs.choice import INSTALLED, Choice, installed, next_start, not_started
from geartrain_edge.programs.store import FOLDER, ProgramStore

PROGRAM_VARIABLE = "GEARTRAIN_PROGRAM"
"""In the environment of a program from over the air: its hash."""
LOCK_FILE = "parent.lock"
"""In a device's state folder: held by whoever runs there."""
GRACE_S = 20
"""A program that is over its deadline has so long at the most to end its apps after their commits."""
DEADLINE_S, TRIES_MAX = 300, 3
DEADLINE_S_MAX, TRIES_MOST = 86_400, 1_000
"""What a device's file may set them to."""
MODULE = "geartrain_edge.agent.process"


@dataclass(frozen=True, slots=True)
class Trial:
    """deadline_s: within so many seconds a new program has to reach the platform; tries_max: starts that it
    has for it.
    """

    deadline_s: int = DEADLINE_S
    tries_max: int = TRIES_MAX

    @property
    def grace_s(self) -> int:
        """From the deadline to the alarm, seconds."""
        return min(GRACE_S, self.deadline_s)


class Alarm:
    """The deadline of a program on trial, in that program."""

    def __init__(self, trial: Trial) -> None:
        self._grace_s = trial.grace_s

    def left_s(self) -> float:
        """Seconds until it is to give up by itself, 0 for no deadline."""
        left_s = signal.getitimer(signal.ITIMER_REAL)[0]
        return max(left_s - self._grace_s, 0.001) if left_s else 0.0

    def disarm(self) -> None:
        """Take the deadline away."""
        signal.alarm(0)


def launch(words: Sequence[str]) -> None:
    """Have the chosen program go on in this process; returns where that is the one that calls.

    words: the command line, `--device FILE.toml`.
    """
    if PROGRAM_VARIABLE in os.environ or len(words) != 2:
        return
    state, trial = _read(Path(words[1]))
    try:
        if state is None or not (state / FOLDER).is_dir():
            return
        lock = os.open(state / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _start(ProgramStore(state / FOLDER), trial, words)
    except OSError:  # such as another one that runs here: the installed program says it
        return
    finally:
        os.close(lock)


def relaunch(words: Sequence[str], taken: Mapping[str, str]) -> None:
    """Begin anew with what is chosen now, in this process; does not return, but for an `OSError`.

    taken: variables of the service manager, which this process has taken out of its environment.
    """
    environment = {**os.environ, **taken}
    program = environment.pop(PROGRAM_VARIABLE, "")
    paths = environment.pop("PYTHONPATH", "").split(os.pathsep)
    if program and Path(paths[0]).name == program:
        del paths[0]
    if any(paths):
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    signal.alarm(0)
    os.execve(sys.executable, [sys.executable, "-P", "-m", MODULE, *words], environment)  # noqa: S606


def _start(store: ProgramStore, trial: Trial, words: Sequence[str]) -> None:
    before = store.load()
    known = installed(before, geartrain.__version__, store.version)
    choice, program = next_start(known, store.is_whole, trial.tries_max)
    is_tried = program == choice.tried
    if choice != before and not _kept(store, choice):  # a start that cannot be counted is none on trial
        is_there = before.proved != INSTALLED and store.is_whole(before.proved)
        program, is_tried = before.proved if is_there else INSTALLED, False
    if is_tried:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(trial.deadline_s + trial.grace_s)
    if program == INSTALLED:
        return
    paths = [str(store.path(program)), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        PROGRAM_VARIABLE: program,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONSAFEPATH": "1",  # for the processes that it starts, too: no module of the working folder
        "PYTHONDONTWRITEBYTECODE": "1",  # a torn file of it after a loss of power would not be noticed
    }
    try:
        os.execve(sys.executable, [sys.executable, "-P", "-m", MODULE, *words], environment)  # noqa: S606
    except OSError:
        signal.alarm(0)
        _kept(store, not_started(choice, program))


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _kept(store: ProgramStore, choice: Choice) -> bool:
    try:
        store.save(choice)
    except OSError:
        return False
    return True


def _read(file: Path) -> tuple[Path | None, Trial]:
    """The state folder that a device's file names, and its table `[program]`; what is wrong with it, the
    parent says.
    """
    try:
        with file.open("rb") as opened:
            found: dict[str, Any] = tomllib.load(opened)
    except (OSError, ValueError, RecursionError):
        return None, Trial()
    state, table = found.get("state"), found.get("program", {})
    if not isinstance(state, str) or not isinstance(table, dict):
        return None, Trial()
    deadline_s, tries_max = table.get("deadline_s", DEADLINE_S), table.get("tries_max", TRIES_MAX)
    if not (_is_count(deadline_s, DEADLINE_S_MAX) and _is_count(tries_max, TRIES_MOST)):
        return None, Trial()
    return file.absolute().parent / state, Trial(deadline_s, tries_max)
