"""What the system tells of a process and all that it has started: memory, and the share of a processor.

For the answer to `gear status`. Guarantees: a system that has no `/proc`, or a process that is gone, gives
None and never an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KNOWN_MAX = 10_000
_SESSION, _USER, _SYSTEM, _RESIDENT = 3, 11, 12, 21
"""Where these stand in `/proc/PID/stat`, behind the program's name."""

_DEAD = ("Z", "X")


class ProcessMeter:
    """Measures processes that lead a session, each with the others of its session.

    The share of a processor is since the last question about that process.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int]] = {}

    def of(self, pid: int) -> tuple[int | None, float | None]:
        """(resident bytes, percent of one processor) of the session that `pid` leads."""
        session = list(_of_session(pid))
        if not session:
            self._last.pop(pid, None)
            return None, None
        rss = sum(pages for _, pages in session) * _PAGE_BYTES
        ticks, now_s = sum(used for used, _ in session), time.monotonic()
        if len(self._last) > _KNOWN_MAX:
            self._last.clear()
        then_s, former = self._last.get(pid, (now_s, ticks))
        self._last[pid] = (now_s, ticks)
        if now_s <= then_s:
            return rss, None
        return rss, round(max(0.0, 100 * (ticks - former) / _TICKS_A_SECOND / (now_s - then_s)), 1)


def _of_session(leader: int) -> Iterator[tuple[int, int]]:
    """(processor ticks, resident pages) of each process of a session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[_SESSION]) == leader and fields[0] not in _DEAD:
                yield int(fields[_USER]) + int(fields[_SYSTEM]), int(fields[_RESIDENT])
        except (OSError, IndexError, ValueError):
            continue  # it has just gone
