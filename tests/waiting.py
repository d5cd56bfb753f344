"""How tests wait for what must come: long, so that a busy machine is slow, and not wrong.

It stands beside the record's path, with all tests that start real processes. Guarantees: a wait costs nothing
where all is well, since whoever waits goes on as soon as the thing is there. A wait that runs out raises
`WaitedInVainError`, which says what was waited for and shows the logs of what the test has started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 900.0
"""Seconds that all waits have. No test has a limit of its own."""
PAUSE_S = 0.05
"""Seconds between two looks."""
LOGS_MAX, LOG_BYTES_MAX = 12, 4_000
"""Of so many logs, the newest, so much of the end is shown."""

_logs: dict[Path, None] = {}


class WaitedInVainError(Exception):
    """Something that a test waits for has not come within `WAIT_S`: on a busy machine it may yet have come.

    what: it was waited for; more: what is known of it.
    """

    def __init__(self, what: str, more: str = "") -> None:
        self.what = what
        told = (f"waited {WAIT_S:g} s in vain for {what}", more, show_logs())
        super().__init__("\n".join(filter(None, told)))


def show_logs() -> str:
    """The ends of the newest logs that there are."""
    paths = [path for one in _logs for path in (sorted(one.rglob("*.log")) if one.is_dir() else [one])]
    ends = {path: _end_of(path) for path in paths[-LOGS_MAX:]}
    return "\n".join(f"--- the end of {path}\n{end}" for path, end in ends.items() if end)


def note_log(path: Path) -> Path:
    """Have the end of a log, or of each log in a folder, shown where a wait runs out; the path."""
    _logs.pop(path, None)
    _logs[path] = None
    return path


class Wait:
    """A wait of a loop that does more than look, and calls `check` in each round; what: for what."""

    def __init__(self, what: str) -> None:
        self._what, self._ends_s = what, time.monotonic() + WAIT_S

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._ends_s

    def check(self, *known: object) -> None:
        """Raise `WaitedInVainError` once the time is over; known: what there is so far."""
        if self.is_over:
            raise WaitedInVainError(self._what, "\n".join(map(str, known)))


def wait_for(what: str, look: Callable[[], T | None], *, pause_s: float = PAUSE_S) -> T:
    """Look again and again until there is something true, and return that; raises `WaitedInVainError`."""
    wait = Wait(what)
    while not (found := look()):
        wait.check()
        time.sleep(pause_s)
    return found


async def in_time(what: str, awaitable: Awaitable[T]) -> T:
    """What an awaitable comes to; raises `WaitedInVainError`."""
    limit = asyncio.timeout(WAIT_S)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise WaitedInVainError(what) from None
        raise


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - LOG_BYTES_MAX, 0))
            return file.read().decode(errors="replace").rstrip()
    except OSError:
        return ""
