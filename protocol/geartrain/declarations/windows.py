"""Windows: which stretches of event time a record of a key belongs to, and when early results are given.

Declared in a flow and read by the window operators, the joins and the planner. Guarantees: a window is a pure
function of event time (a session: of the times of its key's records). It is aligned to 1970 UTC plus an
offset, with floor division before 1970 too; those of a calendar are in `calendars`. All windows are
[start, end), in int64 microseconds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

import msgspec

from geartrain.declarations.calendars import Calendar
from geartrain.errors import FlowError
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME

_MICROSECOND = timedelta(microseconds=1)
WINDOWS_MAX = 10_000
"""Windows that one record may lie in."""
LENGTH_US_MAX = 30_000 * 365 * 86_400_000_000
"""The longest window, gap or step of early results, microseconds."""
TIME_US_MAX = 2**61
"""The latest event time, and before 1970 the earliest, whose windows can be told, microseconds."""


class Tumbling(msgspec.Struct, frozen=True):
    """Windows of one size, one after the other; every time lies in exactly one."""

    size_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        _check_longer_than_nothing("tumbling", "size", self.size_us)

    def assign(self, time: int) -> tuple[tuple[int, int], ...]:
        """The one window (start, end) that `time` lies in."""
        start = (time - self.offset_us) // self.size_us * self.size_us + self.offset_us
        return ((start, start + self.size_us),)


class Sliding(msgspec.Struct, frozen=True):
    """Windows of one size, of which one begins every `every_us`; they overlap, or leave gaps."""

    size_us: int
    every_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        _check_longer_than_nothing("sliding", "size", self.size_us)
        _check_longer_than_nothing("sliding", "every", self.every_us)
        if self.size_us // self.every_us > WINDOWS_MAX:
            raise FlowError(
                f"sliding: a record would lie in {self.size_us // self.every_us} windows: make every longer, "
                f"so that it is in {WINDOWS_MAX} at the most"
            )

    def assign(self, time: int) -> tuple[tuple[int, int], ...]:
        """The windows (start, end) that `time` lies in, earliest first; none in a gap."""
        size, every = self.size_us, self.every_us
        last = (time - self.offset_us) // every * every + self.offset_us
        first = last - (last + size - 1 - time) // every * every
        return tuple((start, start + size) for start in range(first, last + 1, every))


class Session(msgspec.Struct, frozen=True):
    """Runs of records of which each comes less than `gap_us` after the one before; a session lasts from its
    first record to its last plus the gap.
    """

    gap_us: int

    def __post_init__(self) -> None:
        _check_longer_than_nothing("session", "gap", self.gap_us)


class Global(msgspec.Struct, frozen=True):
    """One window that holds everything and ends with END_OF_TIME."""

    def assign(self, time: int) -> tuple[tuple[int, int], ...]:
        """The one window there is."""
        return ((START_OF_TIME, END_OF_TIME),)


Window: TypeAlias = Tumbling | Sliding | Session | Global | Calendar


class EveryRecords(msgspec.Struct, frozen=True):
    """An early result with every `count` records of a window, in canonical order."""

    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise FlowError(f"every_records({self.count!r}): the number of records must be 1 or more")


class EveryTime(msgspec.Struct, frozen=True):
    """An early result each time event time passes a multiple of `every_us` since the window's start (a global
    window: since 1970), when records have come since the last one.
    """

    every_us: int

    def __post_init__(self) -> None:
        _check_longer_than_nothing("every_time", "every", self.every_us)

    def boundary(self, start: int, time: int) -> int:
        """The first time after `time` at which an early result of the window from `start` is due."""
        begin = 0 if start == START_OF_TIME else start
        return begin + ((time - begin) // self.every_us + 1) * self.every_us


Early: TypeAlias = EveryRecords | EveryTime


def tumbling(size: timedelta, *, offset: timedelta = timedelta()) -> Tumbling:
    """Windows of one size, one after the other, aligned to 1970-01-01 UTC.

    Args:
        size: how long each is, a microsecond at the least.
        offset: by how much all of them are moved.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    Raises:
        FlowError: for a size that is not longer than nothing, or longer than 30,000 years.

    >>> from datetime import timedelta
    >>> tumbling(timedelta(seconds=1)).assign(-1)
    ((-1000000, 0),)
    """
    return Tumbling(_us("tumbling", "size", size), _us("tumbling", "offset", offset))


def sliding(size: timedelta, every: timedelta, *, offset: timedelta = timedelta()) -> Sliding:
    """Windows of one size, of which one begins at every multiple of a time since 1970-01-01 UTC.

    Args:
        size: how long each is.
        every: how long after one the next begins; shorter than `size`, they overlap, longer, they leave gaps.
        offset: by how much all of them are moved.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    Raises:
        FlowError: for a length that is not longer than nothing, and where a record would lie in more than
            10,000 windows.

    >>> from datetime import timedelta
    >>> sliding(timedelta(microseconds=4), timedelta(microseconds=2)).assign(5)
    ((2, 6), (4, 8))
    """
    times = _us("sliding", "size", size), _us("sliding", "every", every), _us("sliding", "offset", offset)
    return Sliding(*times)


def session(gap: timedelta) -> Session:
    """Sessions: runs of records of a key, each of which comes less than a gap after the one before.

    Args:
        gap: the time without a record that ends a session. A session lasts from its first record to its last
            one plus the gap.

    Returns:
        The window, for `KeyedStream.window`.

    Raises:
        FlowError: for a gap that is not longer than nothing.

    >>> from datetime import timedelta
    >>> session(timedelta(minutes=30)).gap_us
    1800000000
    """
    return Session(_us("session", "gap", gap))


def global_window() -> Global:
    """One window for all of time; its result comes when all sources have ended.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    >>> global_window() == Global()
    True
    """
    return Global()


def every_records(count: int) -> EveryRecords:
    """Early results: one with every so many records of a window.

    Args:
        count: how many, 1 or more.

    Returns:
        What `WindowedStream.aggregate` takes as `early`.

    Raises:
        FlowError: for a count below 1.

    >>> every_records(100).count
    100
    """
    return EveryRecords(count)


def every_time(every: timedelta) -> EveryTime:
    """Early results: one each time so much event time has passed in a window, if records came since the last
    one.

    Args:
        every: how much, counted from the window's start (a global window: from 1970).

    Returns:
        What `WindowedStream.aggregate` takes as `early`.

    Raises:
        FlowError: for a time that is not longer than nothing.

    >>> from datetime import timedelta
    >>> every_time(timedelta(minutes=5)).boundary(0, 7_000_000)
    300000000
    """
    return EveryTime(_us("every_time", "every", every))


def _us(verb: str, name: str, length: object) -> int:
    if not isinstance(length, timedelta):
        raise FlowError(f"{verb}: {name}={length!r} must be a datetime.timedelta")
    us = length // _MICROSECOND
    if not -LENGTH_US_MAX <= us <= LENGTH_US_MAX:
        raise FlowError(f"{verb}: {name}={length!r} is longer than 30,000 years")
    return us


def _check_longer_than_nothing(verb: str, name: str, length_us: int) -> None:
    if not 1 <= length_us <= LENGTH_US_MAX:
        raise FlowError(f"{verb}: {name} must be at least a microsecond, and at most 30,000 years")
