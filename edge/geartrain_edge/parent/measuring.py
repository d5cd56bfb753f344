"""What an app's process takes of a device, and what is left there: rates over spans of time.

Under `Apps`, which reports them, so that the platform can choose a cut that fits the device. Guarantees: no
code of a flow takes part, and what a system does not say is no figure, rather than a guess.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from geartrain.control.limits import LANE_LIMITS
from geartrain.control.states import Measured, StepKept
from geartrain.ports import StateSize

SPAN_S = 30.0
"""How long a rate is taken over, seconds."""
_STEP_CHARS_MAX, _INT_MAX = 128, 2**63 - 1
_TICKS = os.sysconf("SC_CLK_TCK")


class Spent(msgspec.Struct, frozen=True):
    """Totals at one moment. records: that the sources of the app have given; cpu_s: of its process, seconds;
    idle_s: of all cores of the device together, seconds; free_bytes: memory that processes could still have;
    kept: how much the app's spool has of each step's state.
    """

    records: int
    cpu_s: float
    idle_s: float
    free_bytes: int
    kept: Mapping[str, StateSize] = {}


class Meter:
    """Of one process, from its start on."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        """`span_s`: how long a rate is taken over, seconds."""
        self._span_s = span_s
        self._began: tuple[float, Spent] | None = None
        self.measured: Measured | None = None
        """Over the last whole span; None before there was one."""

    def is_due(self, now_s: float) -> bool:
        """Whether totals are wanted now; now_s: a clock that never goes back, seconds."""
        return self._began is None or now_s - self._began[0] >= self._span_s

    def take(self, spent: Spent | None, now_s: float) -> None:
        """Take the totals, once they are due; None where they are not known. A span in which they go back is
        not told of.
        """
        began, self._began = self._began, None if spent is None else (now_s, spent)
        if began is None or spent is None:
            return
        span_s, before = now_s - began[0], began[1]
        records, cpu_s = spent.records - before.records, spent.cpu_s - before.cpu_s
        if records < 0 or cpu_s < 0:
            return
        self.measured = Measured(
            round(records / span_s, 3),
            round(cpu_s / span_s, 6),
            round(max(0.0, spent.idle_s - before.idle_s) / span_s, 3),
            spent.free_bytes,
            _largest(spent.kept),
        )


def _largest(kept: Mapping[str, StateSize]) -> tuple[StepKept, ...]:
    """Of those steps that keep most, as many as a report names; what no agent says is not taken."""
    known = [
        (step, size)
        for step, size in kept.items()
        if len(step) <= _STEP_CHARS_MAX and 0 <= size.cells <= _INT_MAX and 0 <= size.bytes <= _INT_MAX
    ]
    most = sorted(known, key=lambda one: (-one[1].bytes, one[0]))[: LANE_LIMITS.kept_max]
    return tuple(StepKept(step, size.cells, size.bytes) for step, size in sorted(most))


def spent_by(pid: int, records: int, proc: Path = Path("/proc")) -> Spent | None:
    """The totals of the process `pid`, whose sources gave so many records; None where the system does not
    say. proc: where the system says it.
    """
    try:
        # The name of the process, in parentheses, may hold blanks.
        own = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        cores = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        used, idle = int(own[11]) + int(own[12]), int(cores[4])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return Spent(records, used / _TICKS, idle / _TICKS, free * 1_024)
