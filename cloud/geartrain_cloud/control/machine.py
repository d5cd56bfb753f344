"""What the system tells of processes and all that they have started: memory, and the share of a processor.

For the answers to `gear status` and `gear bench`. Guarantees: a system that has no `/proc`, or a process that
is gone, gives None and never an error. However many processes are asked for, those of the machine are looked
through once.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KNOWN_MAX = 10_000
_SESSION, _USER, _SYSTEM, _USER_OF_ENDED, _SYSTEM_OF_ENDED, _RESIDENT = 3, 11, 12, 13, 14, 21
"""Where these stand in `/proc/PID/stat`, behind the program's name; those of ended: of its children."""

_DEAD = (b"Z", b"X")
_PROCESSES = Path("/proc")

Measured = tuple[int | None, float | None]
"""Resident bytes, and percent of one processor since the last question; None for what is not known."""

GONE: Measured = (None, None)


@dataclass(frozen=True, slots=True)
class _Process:
    """ticks: of a processor that it has used, of_ended: that its ended children had; pages: resident."""

    ticks: int
    of_ended: int
    pages: int


def processor_seconds(pids: Collection[int]) -> Mapping[int, float]:
    """Seconds of a processor that each session has used which one of `pids` leads, its ended processes
    counted. A process that is gone, and any process where there is no `/proc`, is left out.
    """
    return {
        pid: sum(one.ticks + one.of_ended for one in session) / _TICKS_A_SECOND
        for pid, session in _sessions(frozenset(pids)).items()
    }


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

    def _measured(self, pid: int, session: Collection[_Process], now_s: float) -> Measured:
        if not session:
            self._last.pop(pid, None)
            return GONE
        rss = sum(one.pages for one in session) * _PAGE_BYTES
        ticks = sum(one.ticks for one in session)
        if len(self._last) > _KNOWN_MAX:
            self._last.clear()
        then_s, former = self._last.get(pid, (now_s, ticks))
        self._last[pid] = (now_s, ticks)
        if now_s <= then_s:
            return rss, None
        return rss, round(max(0.0, 100 * (ticks - former) / _TICKS_A_SECOND / (now_s - then_s)), 1)


def _sessions(leaders: Collection[int]) -> Mapping[int, list[_Process]]:
    """By leader, the processes of its session."""
    found = defaultdict[int, list[_Process]](list)
    for path in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
            leader = int(fields[_SESSION])
            if leader in leaders and fields[0] not in _DEAD:
                used = int(fields[_USER]) + int(fields[_SYSTEM])
                of_ended = int(fields[_USER_OF_ENDED]) + int(fields[_SYSTEM_OF_ENDED])
                found[leader].append(_Process(used, of_ended, int(fields[_RESIDENT])))
        except (OSError, IndexError, ValueError):
            continue  # it has just gone
    return found
