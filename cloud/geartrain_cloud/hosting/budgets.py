"""How many rows of a flow with a backlog the next micro-batch reads, by how long the last ones took.

Beside the source of a group's query, which asks before each micro-batch and says what it has planned. A
micro-batch takes some time whatever it reads, and more for each row of a flow. Both are estimated here from
micro-batches that were run. Nothing is read or written here.

Guarantees: no result depends on a budget, since the end of a micro-batch is in its offsets. A budget at most
doubles from one micro-batch to the next. It is never below `ROWS_LEAST`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FIRST_ROWS = 5_000
"""The budget of a flow of which nothing is known yet."""
ROWS_LEAST = 100
"""So many rows cost next to nothing beside the micro-batch itself."""
WHOLE_S = 1.0
"""So long a micro-batch shall take where only backlogs wait. A question or a switch waits for it."""
YIELDED = 0.5
"""Where another flow has little to read, backlogs take so much of a micro-batch's own time, together."""
SIZE_MAX = 64 << 20
"""Bytes of one flow that a micro-batch reads of the log, and bytes of results that it is likely to make."""
OWN_S = 0.4
"""A micro-batch's own time before one was measured, seconds."""

_POINTS = 8
"""By so many of the last micro-batches the costs of a flow are told."""
_SPREAD = 1.2
"""So unlike their rows must be for the time of rows to be told from a micro-batch's own."""
_QUIET_WEIGHT = 0.2
_COST_LEAST_S = 1e-9


@dataclass(slots=True)
class _Flow:
    """What is known of one flow.

    points: rows and seconds of micro-batches in which it alone had a backlog; cost_s: of a row; given: the
    rows that it last read, as if it had read alone; made_size: bytes of results for each row that it reads.
    """

    points: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_POINTS))
    cost_s: float = 0.0
    given: int = 0
    made_size: float = 0.0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A micro-batch under way: its offsets at the end, when it was planned (monotonic seconds), the rows that
    each flow with a backlog was given, and whether it runs another version of the plan than the one before.
    """

    end: Mapping[str, int]
    at_s: float
    given: Mapping[str, int]
    switches: bool


class Budgets:
    """Those of all flows of one group, by generation."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._flows: dict[str, _Flow] = {}
        self._begun: _Begun | None = None
        self.own_s = OWN_S
        """What a micro-batch takes whatever it reads, seconds."""

    def begin(self, end: Mapping[str, int], given: Mapping[str, int], *, switches: bool) -> None:
        """A micro-batch was planned.

        end: its offsets; given: the rows that it reads of each flow which has more than that; switches: it
        brings another version of the plan, so code may be loaded.
        """
        self._begun = _Begun(end, self._monotonic_s(), given, switches)
        for name, rows in given.items():
            self._known(name).given = rows * len(given)  # they share one micro-batch

    def settle(self, start: Mapping[str, int], made: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Learn from the micro-batch that has ended, if one has.

        start: the offsets at which the next one begins; made: gives by flow the rows of the log that the last
        micro-batch read and the bytes of its results.
        """
        begun = self._begun
        if begun is None or begun.end != start:
            return
        self._begun = None
        for name, (rows, size) in made().items():
            if rows:
                self._known(name).made_size = size / rows
        seconds = self._monotonic_s() - begun.at_s
        if begun.switches:
            return
        if not begun.given:
            self.own_s += _QUIET_WEIGHT * (seconds - self.own_s)
        elif len(begun.given) == 1:
            ((name, rows),) = begun.given.items()
            self._fit(name, rows, seconds)
        else:
            self._spread(begun.given, seconds)

    def _fit(self, name: str, rows: int, seconds: float) -> None:
        """Tell a row's time from the micro-batch's own, by least squares where their numbers differ."""
        flow = self._known(name)
        flow.points.append((rows, seconds))
        numbers = [rows for rows, _ in flow.points]
        if max(numbers) > _SPREAD * min(numbers):
            rows_mean = sum(numbers) / len(numbers)
            seconds_mean = sum(took for _, took in flow.points) / len(flow.points)
            square = sum((one - rows_mean) ** 2 for one in numbers)
            slope = sum((one - rows_mean) * (took - seconds_mean) for one, took in flow.points) / square
            least = min(took for _, took in flow.points)
            self.own_s = min(max(0.0, seconds_mean - max(0.0, slope) * rows_mean), least)
        flow.cost_s = max(_COST_LEAST_S, (seconds - self.own_s) / rows)

    def _spread(self, given: Mapping[str, int], seconds: float) -> None:
        """Have the costs of several flows explain what a micro-batch took."""
        work_s = max(0.0, seconds - self.own_s)
        expected_s = sum(self._known(name).cost_s * rows for name, rows in given.items())
        for name, rows in given.items():
            flow = self._known(name)
            cost_s = flow.cost_s * work_s / expected_s if expected_s else work_s / len(given) / rows
            flow.cost_s = max(_COST_LEAST_S, cost_s)

    def alone(self, name: str) -> int:
        """Rows for a flow with a backlog where none with little to read waits."""
        return self._rows(name, max(WHOLE_S - self.own_s, self.own_s))

    def beside(self, name: str) -> int:
        """Rows for a flow with a backlog where another one with little to read waits."""
        return self._rows(name, YIELDED * self.own_s)

    def _rows(self, name: str, work_s: float) -> int:
        flow = self._known(name)
        rows = FIRST_ROWS if not flow.cost_s else int(work_s / flow.cost_s)
        rows = min(rows, max(FIRST_ROWS, 2 * flow.given))
        if flow.made_size:
            rows = min(rows, int(SIZE_MAX / flow.made_size))
        return max(ROWS_LEAST, rows)

    def forget(self, kept: set[str]) -> None:
        """Forget all flows but these."""
        for name in self._flows.keys() - kept:
            del self._flows[name]

    def _known(self, name: str) -> _Flow:
        return self._flows.setdefault(name, _Flow())
