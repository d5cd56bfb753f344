"""The open windows of a key, the event times that windows can have, and the results that leave them.

Stands under the windowed steps, which differ in how they take records and in what their windows hold. A
result that user code cannot make is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.accumulating.contents import Content, ResultColumns, without
from geartrain.declarations.windows import TIME_US_MAX
from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, describe, raw_form
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch, DeadLetter, Origin, child_path
from geartrain.records.codes import Code, code_of
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import decode_key, encode_key
from geartrain.state.told import Told, ToldWindow, opened

A = TypeVar("A")

TOO_FAR = "its event time is more than 73,000 years from 1970, where no window can be told"


class OpenWindow(msgspec.Struct, Generic[A], array_like=True):
    """A window [start, end), microseconds, that has records.

    held: what the step keeps of them; revision: the number of its next result; count: records since the last
    early one; boundary: when the next early one is due, None where none is.
    """

    start: int
    end: int
    held: A
    revision: int = 0
    count: int = 0
    boundary: int | None = None

    def fires_at(self) -> int:
        """The watermark that ends it."""
        return min(self.end, END_OF_TIME)

    def due(self) -> int:
        """The watermark at which its next result comes."""
        fires = self.fires_at()
        return fires if self.boundary is None else min(self.boundary, fires)


class OpenWindows(msgspec.Struct, Generic[A], array_like=True):
    """The open windows of one key by their start."""

    windows: dict[int, OpenWindow[A]] = {}


@lru_cache(maxsize=256)
def windows_type(kind: Any) -> Any:
    """The state type of a key whose windows hold what is of the type `kind`."""
    return OpenWindows[kind]


def told_windows(services: Services, content: Content, key: bytes, cell: bytes) -> Told:
    """The open windows of a key in a saved cell, and what each would give by now; raises what user code
    raises.
    """
    found = opened(services.step, windows_type(content.kind), cell).windows.values()
    return Told(
        windows=tuple(
            ToldWindow(one.start, one.end, content.result(one.held, key, one.start, one.end, one.revision))
            for one in sorted(found, key=lambda window: (window.start, window.end))
        )
    )


def in_reach(services: Services, batch: Batch) -> Batch:
    """The records whose windows have times of 64 bits; the others are dead letters."""
    times = batch.times
    if not times or (min(times) >= -TIME_US_MAX and max(times) <= TIME_US_MAX):
        return batch
    far = {row: TOO_FAR for row, time in enumerate(times) if not -TIME_US_MAX <= time <= TIME_US_MAX}
    return batch.take(without(services, batch, far, Code.NO_WINDOW))


class Results:
    """Results under construction, and the dead letters of those that could not be made."""

    def __init__(self) -> None:
        self.batch = Batch([], [], [], [], [])
        self.letters: list[DeadLetter] = []

    def extend(self, other: Results) -> None:
        """Append what another has."""
        mine, more = self.batch, other.batch
        mine.values += more.values
        mine.times += more.times
        mine.names += more.names
        mine.numbers += more.numbers
        mine.paths = (mine.paths or []) + (more.paths or [])
        if more.keys:
            mine.keys = (mine.keys or []) + more.keys
        self.letters += other.letters


def finisher(services: Services) -> Callable[[Results], Batch]:
    """A function that hands over the dead letters, and gives the results that have the step's type."""
    check = checker(services)

    def finished(results: Results) -> Batch:
        for letter in results.letters:
            services.reject(letter)
        return check(results.batch)

    return finished


class Giver:
    """Gives the results of windows, each at the place (step id, 0, encoded key + start + revision)."""

    def __init__(self, services: Services, content: Content) -> None:
        self._step, self._content = services.step, content

    def give(self, results: Results, key: bytes, window: OpenWindow[Any], time: int) -> None:
        """The next result of a window, of the event time `time`; a dead letter where user code raises."""
        step, revision = self._step, window.revision
        path = key + encode_key((window.start,)) + child_path(b"", revision)
        window.revision += 1
        try:
            value = self._content.result(window.held, key, window.start, window.end, revision)
        except USER_ERRORS as error:
            raw = raw_form({"key": decode_key(key), "start": window.start, "end": window.end})
            origin, code = Origin(step, 0, path), code_of(error)
            results.letters.append(DeadLetter(step, origin, time, code, describe(error), raw))
            return
        out = results.batch
        out.values.append(value)
        out.times.append(time)
        out.names.append(step)
        out.numbers.append(0)
        if out.paths is not None:
            out.paths.append(path)

    def give_all(self, results: Results, keys: Sequence[bytes], windows: Sequence[OpenWindow[Any]]) -> None:
        """The only results of windows that end at one time, one a key."""
        for key, window in zip(keys, windows, strict=True):
            self.give(results, key, window, window.fires_at() - 1)


class ColumnGiver(Giver):
    """Gives the same with less work for each result."""

    def __init__(self, services: Services, content: ResultColumns) -> None:
        super().__init__(services, content)
        self._results = content.results

    def give_all(self, results: Results, keys: Sequence[bytes], windows: Sequence[OpenWindow[Any]]) -> None:
        """The same, for windows of one start."""
        start, end, time = windows[0].start, windows[0].end, windows[0].fires_at() - 1
        try:
            values = self._results([window.held for window in windows], keys, start, end)
        except USER_ERRORS:  # found again, window by window
            super().give_all(results, keys, windows)
            return
        out, count, tail = results.batch, len(keys), encode_key((start,)) + child_path(b"", 0)
        out.values += values
        out.times += [time] * count
        out.names += [self._step] * count
        out.numbers += [0] * count
        out.paths = (out.paths or []) + [key + tail for key in keys]
