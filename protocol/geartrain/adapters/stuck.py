"""A flow in this process that does not come back from one call: a sentence says where it is.

Beside `gear run` and a device's agent, on a thread of its own, for the user's code runs on the main thread.
Guarantees: it only looks and speaks; one sentence each time that the flow is stuck, up to a bound where one
is given.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Self

STUCK_S = 10.0
_NOT_THE_USERS = frozenset(
    {"__main__", "geartrain", "geartrain_client", "geartrain_cloud", "geartrain_devices", "geartrain_edge"}
) | frozenset(sys.stdlib_module_names)


class StuckWatch:
    """Says where the thread that made it is when `beat` was not called for `after_s`, unless that waits.

    packages: the tops of the flows' modules; say: takes the sentence, on another thread; step: the step at
    work, "" for none; times_max: sentences that are said at the most, None for no bound.
    """

    def __init__(
        self,
        packages: Collection[str],
        say: Callable[[str], None],
        after_s: float = STUCK_S,
        step: Callable[[], str] = str,
        times_max: int | None = None,
    ) -> None:
        self._packages, self._say, self._after_s, self._step = packages, say, after_s, step
        self._beats, self._left = 0, times_max
        self._over = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="stuck-watch", daemon=True)

    def beat(self) -> None:
        """The flow came back from what it did."""
        self._beats += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before, told = 0, -1
        while not self._over.wait(self._after_s):
            beats = self._beats
            stack = _stack(self._watched) if beats == before else None
            place = place_of(stack, self._packages)
            if place and told != beats and self._left != 0:
                told, step = beats, self._step()
                self._left = None if self._left is None else self._left - 1
                who = f"step {step!r}" if step else "the flow"
                self._say(f"for {self._after_s:g} s {who} has not come back from {place}")
            before = beats


def _stack(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack


def place_of(frame: FrameType | None, packages: Collection[str]) -> str:
    """The innermost place of a user's code on a stack, "" where there is none. packages: are the user's."""
    while frame is not None:
        code, top = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        beside = top not in _NOT_THE_USERS and "site-packages" not in code.co_filename
        if top in packages or beside:
            return f"{code.co_name} ({code.co_filename}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""
