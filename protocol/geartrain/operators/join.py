"""join: pairs of records of one key that lie in an interval of time around each other, or in one window.

A pair leaves as soon as both its records are there; a left record without any leaves once the watermark says
that none will come. Guarantees: the same pairs in whatever order the two sides arrive; a record is held no
longer than the watermark allows for a match. What is held, let go, or meets nothing at all is counted: by
`<step>.held`, `.released` and `.unreachable`, so that held less released are the rows in the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import Global, Sliding, Tumbling
from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, describe, raw_form
from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.operators.windowed import Windowed
from geartrain.records.batch import Batch, DeadLetter, Origin
from geartrain.records.codes import code_of
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import TUPLE, encode_elements
from geartrain.state.held import HeldRow
from geartrain.state.told import Told, opened, told_rows
from geartrain.tasks.task_context import StepMetrics

L = TypeVar("L")
R = TypeVar("R")

LEFT, RIGHT = 0, 1


class Reach(Protocol):
    """Which times of one side a record of the other side can be joined with."""

    def of(self, side: int, time: int) -> tuple[int, int] | None:
        """The first and the last time of the other side for a record of `side` at `time` (microseconds, both
        ends in). Neither ever falls as `time` rises; None where it can be joined with nothing.
        """
        ...

    def last(self, side: int, time: int) -> int:
        """The last time of the other side that a record of `side` at `time` may be joined with, its own time
        where that is none.
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


class _Fates(msgspec.Struct):
    """Results on their way, in columns: event times, origin paths, and what the function is given."""

    times: list[int] = msgspec.field(default_factory=list)
    paths: list[bytes] = msgspec.field(default_factory=list)
    lefts: list[Any] = msgspec.field(default_factory=list)
    rights: list[Any] = msgspec.field(default_factory=list)

    def add(self, time: int, path: bytes, left: Any, right: Any) -> None:
        """One more."""
        self.times.append(time)
        self.paths.append(path)
        self.lefts.append(left)
        self.rights.append(right)


class Joining:
    """A join at work; `outer`: left records without a match leave too."""

    def __init__(
        self, services: Services, reach: Reach, function: Callable[[Any, Any], Any], *, outer: bool
    ) -> None:
        kind = waiting_type(services.inputs[LEFT], services.inputs[RIGHT])
        self._cells = services.state.of_step(services.step, kind, own=True, lasting=True)
        self._services, self._reach, self._function, self._outer = services, reach, function, outer
        self._of, self._last = reach.of, reach.last
        self._check = checker(services)
        self._metrics = StepMetrics(services)

    def _count(self, name: str, count: int) -> None:
        if count:
            self._metrics.add(name, count)

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records of a side; returns their pairs with what the other side holds."""
        out, cells = _Fates(), self._cells
        take = self._take_left if port == LEFT else self._take_right
        times, names, numbers, values = batch.times, batch.names, batch.numbers, batch.values
        paths = batch.paths
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(batch.keys or ()):
            if key in rows:
                rows[key].append(row)
            else:
                rows[key] = [row]
        taken = 0
        for key, fresh in rows.items():
            in_use = cells.at_hand(key)
            waiting = cells.get(key) if in_use is None else in_use
            mine = waiting.left if port == LEFT else waiting.right
            first = mine[0] if mine else None
            for row in fresh:
                path = b"" if paths is None else paths[row]
                taken += take(waiting, HeldRow(times[row], names[row], numbers[row], path, values[row]), out)
            if in_use is None or first is None or mine[0] is not first:
                self._keep(key, waiting)
            else:
                cells.keep(key)  # due when it was
        self._count("held", taken)
        self._count("unreachable", len(batch.keys or ()) - taken)
        cells.save()
        return self._results(out)

    def advance(self, watermark: int) -> Batch:
        """Let go of what can have no more matches; returns the left records that never had one."""
        out, released = _Fates(), 0
        for key in self._cells.due(watermark):
            waiting = self._cells.get(key)
            left, right, matched = waiting.left, waiting.right, waiting.matched
            if gone := self._done(LEFT, left, watermark):
                if self._outer:
                    for row, was_matched in zip(left[:gone], matched[:gone], strict=True):
                        if not was_matched:
                            time = min(self._reach.unmatched_time(row.time), END_OF_TIME - 1)
                            out.add(time, TUPLE + _place(row), row.value, None)
                del left[:gone], matched[:gone]
            if past := self._done(RIGHT, right, watermark):
                del right[:past]
            released += gone + past
            self._keep(key, waiting)
        self._count("released", released)
        self._cells.save()
        return self._results(out)

    def _take_left(self, waiting: Any, row: HeldRow[Any], out: _Fates) -> bool:
        """Whether the row is held, because it can meet others, or leaves by itself in time."""
        time, met = row.time, False
        reach = self._of(LEFT, time)
        if reach is None and not self._outer:
            return False
        if reach is not None and waiting.right:
            start, stop = _between(waiting.right, *reach)
            if met := stop > start:
                place, value = TUPLE + _place(row), row.value
                for other in waiting.right[start:stop]:
                    out.add(max(time, other.time), place + _place(other), value, other.value)
        at = _place_of(time, waiting.left)
        waiting.left.insert(at, row)
        waiting.matched.insert(at, met)
        return True

    def _take_right(self, waiting: Any, row: HeldRow[Any], out: _Fates) -> bool:
        """Whether the row is held, because it can meet others."""
        time = row.time
        reach = self._of(RIGHT, time)
        if reach is None:
            return False
        if waiting.left:
            start, stop = _between(waiting.left, *reach)
            if stop > start:
                place, value = _place(row), row.value
                for at in range(start, stop):
                    other = waiting.left[at]
                    out.add(max(time, other.time), TUPLE + _place(other) + place, other.value, value)
                    waiting.matched[at] = True
        waiting.right.insert(_place_of(time, waiting.right), row)
        return True

    def _done(self, side: int, rows: list[HeldRow[Any]], watermark: int) -> int:
        """How many of a side's records can have no more matches: the later a record, the later its last."""
        if watermark >= END_OF_TIME:  # all is known, however far a record reaches
            return len(rows)
        count = 0
        for row in rows:
            if self._last(side, row.time) >= watermark:
                break
            count += 1
        return count

    def _keep(self, key: bytes, waiting: Any) -> None:
        left, right = waiting.left, waiting.right
        if left:
            end = self._last(LEFT, left[0].time)
            if right:
                end = min(end, self._last(RIGHT, right[0].time))
        elif right:
            end = self._last(RIGHT, right[0].time)
        else:
            self._cells.drop(key)
            return
        self._cells.put(key, waiting, min(end + 1, END_OF_TIME))

    def _results(self, fates: _Fates) -> Batch:
        out = Batch([], [], [], [], [])
        paths: list[bytes] = []
        function = self._function
        for time, path, left, right in zip(fates.times, fates.paths, fates.lefts, fates.rights, strict=True):
            try:
                value = function(left, right)
            except USER_ERRORS as error:
                self._services.reject(self._refused(time, path, left, right, error))
                continue
            out.values.append(value)
            out.times.append(time)
            paths.append(path)
        count = len(paths)
        step = self._services.step
        return self._check(Batch(out.values, out.times, [step] * count, [0] * count, paths))

    def _refused(self, time: int, path: bytes, left: Any, right: Any, error: BaseException) -> DeadLetter:
        origin, raw = Origin(self._services.step, 0, path), raw_form({"left": left, "right": right})
        return DeadLetter(self._services.step, origin, time, code_of(error), describe(error), raw)


def told_sides(services: Services, cell: bytes) -> Told:
    """The records of both sides of a key that may still be joined."""
    kind = waiting_type(services.inputs[LEFT], services.inputs[RIGHT])
    waiting = opened(services.step, kind, cell)
    return Told({"left": told_rows(waiting.left), "right": told_rows(waiting.right)})


def paired(inputs: Sequence[StreamProperties], keeps: frozenset[str]) -> StreamProperties:
    """The properties of the pairs of two streams; a domain that both are keyed by is kept where the function
    passes that field on.
    """
    domains = {i.domain if i.key_local and i.domain in keeps else None for i in inputs}
    domain = domains.pop() if len(domains) == 1 else None
    return StreamProperties(domain, False, timely=all(i.timely for i in inputs))


def _time(row: HeldRow[Any]) -> int:
    return row.time


def _between(rows: list[HeldRow[Any]], first: int, last: int) -> tuple[int, int]:
    """Where the records with times from `first` to `last` begin and end, of at least one record."""
    start = 0 if rows[0].time >= first else bisect_left(rows, first, key=_time)
    stop = len(rows) if rows[-1].time <= last else bisect_right(rows, last, start, key=_time)
    return start, stop


def _place_of(time: int, rows: list[HeldRow[Any]]) -> int:
    """Where a record of `time` belongs: behind all that are not later."""
    return len(rows) if not rows or rows[-1].time <= time else bisect_right(rows, time, key=_time)


def _place(row: HeldRow[Any]) -> bytes:
    """The record's part of an origin path; those of the two records of a pair follow one another."""
    return encode_elements(row.time, row.name, row.number, row.path)


class IntervalJoin(Keyed, frozen=True):
    """Join where left.time + after_us <= right.time <= left.time + before_us, microseconds.

    A pair's event time is the later of its two. With `how="left"` a left record without any right one leaves
    as `function(left, None)` once none can come, at the end of its interval or its own time if that is later.
    """

    after_us: int
    before_us: int
    how: Literal["inner", "left"]
    function: Callable[[Any, Any], Any]
    keeps: frozenset[str] = frozenset()
    kind = "interval_join"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost; a domain that both sides are keyed by is kept, if it is among `keeps`."""
        return paired(inputs, self.keeps)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold what may still be joined."""
        return Joining(services, self, self.function, outer=self.how == "left")

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The records of the key that may still be joined."""
        return told_sides(services, cell)

    def of(self, side: int, time: int) -> tuple[int, int]:
        """The times of the other side for a record of `side` at `time`, both ends in."""
        if side == LEFT:
            return time + self.after_us, time + self.before_us
        return time - self.before_us, time - self.after_us

    def last(self, side: int, time: int) -> int:
        """The last time of the other side for a record of `side` at `time`."""
        return time + self.before_us if side == LEFT else time - self.after_us

    def unmatched_time(self, time: int) -> int:
        """When a left record without a match leaves."""
        return max(time, time + self.before_us)


class WindowJoin(Windowed, frozen=True):
    """Join what shares a window; where windows overlap, a pair still leaves once.

    A pair's event time is the later of its two. With `how="left"` (tumbling and calendar windows only) a left
    record without any right one in its window leaves as `function(left, None)` when the window ends.
    """

    window: Tumbling | Sliding | Global | Calendar
    how: Literal["inner", "left"]
    function: Callable[[Any, Any], Any]
    keeps: frozenset[str] = frozenset()
    kind = "window_join"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost; a domain that both sides are keyed by is kept, if it is among `keeps`."""
        return paired(inputs, self.keeps)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold what may still be joined."""
        if isinstance(self.window, Calendar):
            self.window.check()
        return Joining(services, self, self.function, outer=self.how == "left")

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The records of the key that may still be joined."""
        return told_sides(services, cell)

    def of(self, side: int, time: int) -> tuple[int, int] | None:
        """The times that share a window with `time`, both ends in; None in a gap between windows."""
        windows = self.window.assign(time)
        return (windows[0][0], windows[-1][1] - 1) if windows else None

    def last(self, side: int, time: int) -> int:
        """The last time that shares a window with `time`, itself in a gap between windows."""
        reach = self.of(side, time)
        return time if reach is None else reach[1]

    def unmatched_time(self, time: int) -> int:
        """When a left record without a match leaves: the last microsecond of its window."""
        return self.last(0, time)
