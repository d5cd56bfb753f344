"""A flow in this process that does not come back from one call: a sentence says where it is.

Beside `gear run`, on a thread of its own, for the user's code runs on the main thread. Guarantees: it only
looks and speaks; one sentence each time that the flow is stuck, at most `TIMES_MAX` of them a run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

STUCK_S = 10.0
TIMES_MAX = 20
_NOT_THE_USERS = frozenset(
    {"__main__", "geartrain", "geartrain_client", "geartrain_cloud", "geartrain_devices"}
) | frozenset(sys.stdlib_module_names)


class StuckWatch:
    """Says where the thread that made it is when `beat` was not called for `after_s`, unless that waits.

    package: the top of the flow's module.
    """

    def __init__(self, package: str, say: Callable[[str], None], after_s: float = STUCK_S) -> None:
        self._package, self._say, self._after_s = package, say, after_s
        self._beats, self._said = 0, 0
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
            place = place_of(stack, self._package)
            if place and told != beats and self._said < TIMES_MAX:
                told, self._said = beats, self._said + 1
                self._say(
                    f"for {self._after_s:g} s the flow has not come back from {place}; "
                    "Ctrl-C, and once more, ends it"
                )
            before = beats


def _stack(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack


def place_of(frame: FrameType | None, package: str) -> str:
    """The innermost place of a user's code on a stack, "" where there is none. package: is the user's."""
    while frame is not None:
        code, top = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        beside = top not in _NOT_THE_USERS and "site-packages" not in code.co_filename
        if top == package or beside:
            return f"{code.co_name} ({code.co_filename}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""
