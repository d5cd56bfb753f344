"""The supervisor: starts processes, restarts what dies, and ends them all.

It stands around the record's whole path, never in it. A process that dies is started again and goes on where
it was, because the spool, the ledger and the checkpoints say where. None is ever given up, and none stops
another. It has no threads: `check` is one round, called again and again.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from geartrain.adapters.files import write_private
from geartrain_cloud.errors import SupervisorError
from geartrain_cloud.supervisor.child import (
    EMPTY,
    Child,
    ChildSpec,
    ChildState,
    how_it_ended,
    last_lines,
    unwritable,
)

CONFIGURATION_ERROR = 2
"""The exit code by which a process says that starting it again cannot help."""
ALARM = 3
"""The exit code of what must not be started again: an agent's spool or a host's folder was refused."""
KILL_S = 30.0
"""How long the system may take to end a process that was killed."""
REFUSED_S = 15.0
"""After how long a process that has refused its configuration is tried again: it may be right now."""
FREE_MIN = 1 << 20
"""Bytes: with less free, a disk counts as full where a process has ended."""


class Supervisor:
    """The processes of one state folder; use it as a context manager, which ends them all."""

    def __init__(self, folder: Path, *, grace_s: float = 10.0) -> None:
        """`folder`: where `processes.json` says who runs; `grace_s`: how long an orderly end may take."""
        self.children: dict[str, Child] = {}
        self.happenings: list[str] = []
        self._folder, self._grace_s = folder, grace_s
        self._is_published = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except SupervisorError:
            if kind is None:  # else what failed first is what the user is told
                raise

    def follow(self, specs: Iterable[ChildSpec]) -> None:
        """Have these processes and no others: start those that are new, end those that are not among them,
        and start anew those that read something else now. Returns without waiting: `check` does the rest.

        Raises `SupervisorError` only when processes.json cannot be written.
        """
        wanted, changed = {spec.name: spec for spec in specs}, False
        for name, child in self.children.items():
            spec = wanted.get(name)
            if child.state is not ChildState.ENDING and (spec is None or not spec.is_same(child.spec)):
                changed = True
                child.state, child.end_by_s = ChildState.ENDING, time.monotonic() + self._grace_s
                child.terminate()
        for name, spec in wanted.items():
            if name not in self.children:  # one that has to end first comes in a later round
                changed = True
                self._start(self.children.setdefault(name, Child(spec)))
        if changed:
            self._publish()

    def check(self) -> None:
        """One round: take note of who has ended, start again who has to run and whose delay is over.

        Raises `SupervisorError` only when processes.json cannot be written; the next round tries it again.
        """
        changed = not self._is_published
        for name, child in list(self.children.items()):
            child.bound_log()
            if child.state is ChildState.RUNNING and (code := child.reap()) is not None:
                changed = True
                self._judge(child, code)
            if child.state is ChildState.ENDING and self._has_gone(child):
                changed = True
                del self.children[name]
            if child.state in (ChildState.WAITING, ChildState.FAILED):
                if time.monotonic() < child.start_at_s:
                    continue
                changed = True
                self._start(child)
        if changed:
            self._publish()

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except SupervisorError as error:
            child.plan_restart()
            child.why = str(error)

    def _has_gone(self, child: Child) -> bool:
        """Whether a process that was asked to end has; it is killed when its grace is over."""
        if child.pid is not None and child.reap() is None:
            if time.monotonic() >= child.end_by_s:
                child.kill()
            return False
        child.close()
        return True

    def stop(self) -> None:
        """End all processes: asked first, killed with their groups when the grace is over."""
        children = list(self.children.values())
        for child in children:
            child.terminate()
        if not _all_end(children, self._grace_s):
            for child in children:
                child.kill()
            _all_end(children, KILL_S)
        for child in children:
            child.state = ChildState.STOPPED
            child.close()
        self._publish()

    def _judge(self, child: Child, code: int) -> None:
        said = _last_words(child.spec.log)
        if code in (CONFIGURATION_ERROR, ALARM):
            child.state, child.why = ChildState.FAILED, said
            child.start_at_s = time.monotonic() + REFUSED_S if code == CONFIGURATION_ERROR else math.inf
            self.happenings.append(f"{child.spec.name} has failed: {said}")
            return
        child.plan_restart()
        child.why = f"it {how_it_ended(code)}: {said}"
        why = f": {said}" if code > 0 and said != EMPTY else ""  # who was killed has said nothing of it
        self.happenings.append(
            f"{child.spec.name} {how_it_ended(code)} and is started again ({child.restarts}){why}"
        )

    def _publish(self) -> None:
        """Write who runs under which process id, for people and for tests that kill."""
        state: dict[str, Any] = {
            name: {
                "pid": child.pid,
                "state": child.state.value,
                "restarts": child.restarts,
                "why": child.why,
                "since_us": child.since_us,
            }
            for name, child in self.children.items()
        }
        path = self._folder / "processes.json"
        self._is_published = False
        try:
            write_private(path, json.dumps(state, indent=1) + "\n")
        except OSError as error:
            raise unwritable(path, error) from None
        self._is_published = True


def _last_words(log: Path) -> str:
    """The last line of a log, after what hinders every process and hides behind what this one says."""
    said = " ".join(last_lines(log, 1).split())
    hindrance = _hindrance(log.parent)
    if not hindrance:
        return said
    return hindrance + (f"; {said}" if said != EMPTY else "")


def _hindrance(logs: Path) -> str:
    """What keeps processes from running here: no folder to work in, no room; empty where nothing does."""
    try:
        Path.cwd()
    except OSError:
        return "the folder in which gear up was started is gone: start gear up again in one that stays"
    try:  # what has no room to write its reason ends without a word
        is_full = shutil.disk_usage(logs).free < FREE_MIN
    except OSError:
        return ""
    return f"the disk of {logs} is full: make room" if is_full else ""


def _all_end(children: Sequence[Child], within_s: float) -> bool:
    """Reap the processes as they end; whether all have within the time."""
    deadline = time.monotonic() + within_s
    while [child for child in children if child.pid is not None and child.reap() is None]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


class StopSignal:
    """SIGINT and SIGTERM as a flag that is asked at a safe place, so that no process is left half started."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def wait(self, seconds: float) -> bool:
        """Sleep, and tell whether a signal has come; one ends the sleep within a tenth of a second."""
        deadline = time.monotonic() + seconds
        while self.received is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.received is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
