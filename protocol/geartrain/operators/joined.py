"""The work of both joins: pairs of records of one key, of which each left one reaches some right times.

A pair leaves as soon as both its records are there; a left record without any leaves once the watermark says
that none will come. Guarantees: the same pairs in whatever order the two sides arrive; a record is held no
longer than the watermark allows for a match. What is held, let go, or meets nothing at all is counted: by
`<step>.held`, `.released` and `.unreachable`, so that held less released are the rows in the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from geartrain.batch import Batch, DeadLetter, Origin
from geartrain.event_time import END_OF_TIME
from geartrain.keys import encode_key
from geartrain.operators.conform import checker, describe, raw_form
from geartrain.operators.held import HeldRow
from geartrain.operators.operator import Services, StreamProperties
from geartrain.operators.task_context import StepMetrics

L = TypeVar("L")
R = TypeVar("R")

LEFT, RIGHT = 0, 1


class Reach(Protocol):
    """Which times of one side a record of the other side can be joined with."""

    def of(self, side: int, time: int) -> tuple[int, int] | None:
        """The first and the last time of the other side for a record of `side` at `time` (microseconds, both
        ends in), neither ever falling as `time` rises; None where it can be joined with nothing.
        """
        ...

    def unmatched_time(self, time: int) -> int:
        """The event time at which a left record without a match leaves."""
        ...


class Waiting(msgspec.Struct, Generic[L, R], array_like=True):
    """The records of one key that may still be joined, each side sorted by time; matched: for each left one,
    whether it was.
    """

    left: list[HeldRow[L]] = []
    right: list[HeldRow[R]] = []
    matched: list[bool] = []


@lru_cache(maxsize=256)
def waiting_type(left: Any, right: Any) -> Any:
    """The state type of a key for the Python types of both sides."""
    return Waiting[left, right]


@dataclass(frozen=True, slots=True)
class _Fate:
    """One result on its way: its event time, origin path, and what the function is given."""

    time: int
    path: bytes
    left: Any
    right: Any


class Joining:
    """A join at work; `outer`: left records without a match leave too."""

    def __init__(
        self, services: Services, reach: Reach, function: Callable[[Any, Any], Any], *, outer: bool
    ) -> None:
        kind = waiting_type(services.inputs[LEFT], services.inputs[RIGHT])
        self._cells = services.state.of_step(services.step, kind, own=True, lasting=True)
        self._services, self._reach, self._function, self._outer = services, reach, function, outer
        self._check = checker(services)
        self._metrics = StepMetrics(services)

    def _count(self, name: str, count: int) -> None:
        if count:
            self._metrics.add(name, count)

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records of a side; returns their pairs with what the other side holds."""
        out: list[_Fate] = []
        rows: dict[bytes, list[HeldRow[Any]]] = {}
        for row, key in enumerate(batch.keys or []):
            rows.setdefault(key, []).append(HeldRow.of(batch, row))
        for key, fresh in rows.items():
            waiting = self._cells.get(key)
            taken = sum(self._take(waiting, held, port, out) for held in fresh)
            self._count("held", taken)
            self._count("unreachable", len(fresh) - taken)
            self._keep(key, waiting)
        self._cells.save()
        return self._results(out)

    def advance(self, watermark: int) -> Batch:
        """Let go of what can have no more matches; returns the left records that never had one."""
        out: list[_Fate] = []
        for key in self._cells.due(watermark):
            waiting = self._cells.get(key)
            gone = self._done(LEFT, waiting.left, watermark)
            if self._outer:
                lone = zip(waiting.left[:gone], waiting.matched[:gone], strict=True)
                out += [self._alone(row) for row, matched in lone if not matched]
            del waiting.left[:gone], waiting.matched[:gone]
            past = self._done(RIGHT, waiting.right, watermark)
            del waiting.right[:past]
            self._count("released", gone + past)
            self._keep(key, waiting)
        self._cells.save()
        return self._results(out)

    def _take(self, waiting: Any, row: HeldRow[Any], side: int, out: list[_Fate]) -> bool:
        """Whether the row is held, because it can meet others, or leaves by itself in time."""
        reach = self._reach.of(side, row.time)
        if reach is None and (side == RIGHT or not self._outer):
            return False
        others = waiting.right if side == LEFT else waiting.left
        first, last = reach if reach is not None else (0, -1)
        start = bisect_left(others, first, key=_time)
        stop = bisect_right(others, last, key=_time)
        for at in range(start, stop):
            left, right = (row, others[at]) if side == LEFT else (others[at], row)
            out.append(_pair(left, right))
            if side == RIGHT:
                waiting.matched[at] = True
        if side == LEFT:
            at = bisect_right(waiting.left, row.time, key=_time)
            waiting.left.insert(at, row)
            waiting.matched.insert(at, stop > start)
        else:
            insort(waiting.right, row, key=_time)
        return True

    def _done(self, side: int, rows: list[HeldRow[Any]], watermark: int) -> int:
        """How many of a side's records can have no more matches: the later a record, the later its last."""
        count = 0
        while count < len(rows) and self._last(side, rows[count].time) < watermark:
            count += 1
        return count

    def _last(self, side: int, time: int) -> int:
        """The last time of the other side that a record may still be joined with; never beyond the end of
        time, when all is known.
        """
        reach = self._reach.of(side, time)
        return min(time if reach is None else reach[1], END_OF_TIME - 1)

    def _keep(self, key: bytes, waiting: Any) -> None:
        ends = [self._last(LEFT, row.time) for row in waiting.left[:1]]
        ends += [self._last(RIGHT, row.time) for row in waiting.right[:1]]
        if ends:
            self._cells.put(key, waiting, min(ends) + 1)
        else:
            self._cells.drop(key)

    def _alone(self, row: HeldRow[Any]) -> _Fate:
        time = min(self._reach.unmatched_time(row.time), END_OF_TIME - 1)
        return _Fate(time, encode_key(row.order()), row.value, None)

    def _results(self, fates: list[_Fate]) -> Batch:
        out = Batch([], [], [], [], [])
        paths: list[bytes] = []
        for fate in fates:
            try:
                value = self._function(fate.left, fate.right)
            except Exception as error:
                self._services.reject(self._refused(fate, describe(error)))
                continue
            out.values.append(value)
            out.times.append(fate.time)
            paths.append(fate.path)
        count = len(paths)
        step = self._services.step
        return self._check(Batch(out.values, out.times, [step] * count, [0] * count, paths))

    def _refused(self, fate: _Fate, reason: str) -> DeadLetter:
        step = self._services.step
        raw = raw_form({"left": fate.left, "right": fate.right})
        return DeadLetter(step, Origin(step, 0, fate.path), fate.time, reason, raw)


def paired(inputs: Sequence[StreamProperties], keeps: frozenset[str]) -> StreamProperties:
    """The properties of the pairs of two streams; a domain that both are keyed by is kept where the function
    passes that field on.
    """
    domains = {i.domain if i.key_local and i.domain in keeps else None for i in inputs}
    domain = domains.pop() if len(domains) == 1 else None
    return StreamProperties(domain, False, timely=all(i.timely for i in inputs))


def _time(row: HeldRow[Any]) -> int:
    return row.time


def _pair(left: HeldRow[Any], right: HeldRow[Any]) -> _Fate:
    path = encode_key((*left.order(), *right.order()))
    return _Fate(max(left.time, right.time), path, left.value, right.value)
