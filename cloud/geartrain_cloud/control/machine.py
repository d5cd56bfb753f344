"""What the system tells of processes and all that they have started: memory, and the share of a processor.

For the answer to `gear status`. Guarantees: a system that has no `/proc`, or a process that is gone, gives
None and never an error. However many processes are asked for, those of the machine are looked through once.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KNOWN_MAX = 10_000
_SESSION, _USER, _SYSTEM, _RESIDENT = 3, 11, 12, 21
"""Where these stand in `/proc/PID/stat`, behind the program's name."""

_DEAD = (b"Z", b"X")
_PROCESSES = Path("/proc")

Measured = tuple[int | None, float | None]
"""Resident bytes, and percent of one processor since the last question; None for what is not known."""

GONE: Measured = (None, None)


class ProcessMeter:
    """Measures processes that lead a session, each with the others of its session.

    The share of a processor is since the last question about that process.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int]] = {}

    def of(self, pids: Collection[int]) -> Mapping[int, Measured]:
        """What the session takes that each of `pids` leads."""
        sessions, now_s = _sessions(frozenset(pids)), time.monotonic()
        return {pid: self._measured(pid, sessions.get(pid, ()), now_s) for pid in pids}

    def _measured(self, pid: int, session: Collection[tuple[int, int]], now_s: float) -> Measured:
        if not session:
            self._last.pop(pid, None)
            return GONE
        rss = sum(pages for _, pages in session) * _PAGE_BYTES
        ticks = sum(used for used, _ in session)
        if len(self._last) > _KNOWN_MAX:
            self._last.clear()
        then_s, former = self._last.get(pid, (now_s, ticks))
        self._last[pid] = (now_s, ticks)
        if now_s <= then_s:
            return rss, None
        return rss, round(max(0.0, 100 * (ticks - former) / _TICKS_A_SECOND / (now_s - then_s)), 1)


def _sessions(leaders: Collection[int]) -> Mapping[int, list[tuple[int, int]]]:
    """By leader, (processor ticks, resident pages) of each process of its session."""
    found = defaultdict[int, list[tuple[int, int]]](list)
    for path in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
            leader = int(fields[_SESSION])
            if leader in leaders and fields[0] not in _DEAD:
                used = int(fields[_USER]) + int(fields[_SYSTEM])
                found[leader].append((used, int(fields[_RESIDENT])))
        except (OSError, IndexError, ValueError):
            continue  # it has just gone
    return found
