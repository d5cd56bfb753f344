"""Windows at work: which windows of a key are open, what each holds, and when it gives its result.

Stands under window aggregate, reduce and fold, and both parts of an aggregate that is split. One cell per key
holds its open windows and is due when the first of them is. A window fires once the watermark has reached its
end, and is then forgotten. Guarantees: the same results in whatever order and batches the records came; a
record for which user code raises leaves no trace but a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.batch import Batch, DeadLetter, Origin, child_path
from geartrain.event_time import END_OF_TIME
from geartrain.keys import decode_key, encode_key
from geartrain.operators.conform import checker, dead_letter, describe, raw_form
from geartrain.operators.contents import Content, without
from geartrain.operators.operator import Services
from geartrain.windows import TIME_US_MAX, Early, EveryRecords, EveryTime, Session, Window

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


def _no_bounds(time: int) -> tuple[tuple[int, int], ...]:
    """Of a session, which takes its bounds from its records."""
    return ()


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


class Windowing:
    """A windowed step at work. fallible: taking records may raise, however much the content is trusted."""

    fallible: ClassVar[bool] = False

    def __init__(self, services: Services, window: Window, content: Content, early: Early | None) -> None:
        self._services, self._window, self._content, self._early = services, window, content, early
        self._check = checker(services)
        self._assign: Callable[[int], Sequence[tuple[int, int]]]
        self._assign = _no_bounds if isinstance(window, Session) else window.assign
        self._sequential = content.sequential or early is not None
        # What neither fails nor calls user code is never undone: its cells are encoded once a commit.
        self._lasting = content.trusted and not self._sequential and not self.fallible
        self._cells = services.state.of_step(
            services.step, windows_type(content.kind), own=content.trusted, lasting=self._lasting
        )

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records into their windows; early results leave."""
        ready, read = self._content.prepare(self._in_reach(batch))
        results = Results()
        try:
            self._take(ready, read, range(len(ready)), results)
        except Exception:  # found again, record by record
            if self._lasting:
                raise
            self._cells.roll_back()
            results = self._one_by_one(ready, read)
        return self._finished(results)

    def advance(self, watermark: int) -> Batch:
        """The results that are due at `watermark`, early ones before the last one of each window."""
        results, cells = Results(), self._cells
        for key in cells.due(watermark):
            cell = cells.get(key)
            for window in sorted(cell.windows.values(), key=lambda w: (w.end, w.start)):
                self._early_by_time(results, key, window, watermark)
                if window.fires_at() <= watermark:
                    self._emit(results, key, window, window.fires_at() - 1)
                    del cell.windows[window.start]
            self._put(key, cell)
        cells.save()
        return self._finished(results)

    def give(self, windows: Iterable[tuple[bytes, int, int, Any]]) -> Batch:
        """The results of windows that were added up elsewhere: encoded key, start, end, and what is held."""
        results = Results()
        for key, start, end, held in windows:
            window = OpenWindow(start, end, held)
            self._emit(results, key, window, window.fires_at() - 1)
        return self._finished(results)

    def _in_reach(self, batch: Batch) -> Batch:
        """The records whose windows have times of 64 bits; the others are dead letters."""
        times = batch.times
        if not times or (min(times) >= -TIME_US_MAX and max(times) <= TIME_US_MAX):
            return batch
        far = {row: TOO_FAR for row, time in enumerate(times) if not -TIME_US_MAX <= time <= TIME_US_MAX}
        return batch.take(without(self._services, batch, far))

    def _one_by_one(self, batch: Batch, read: Any) -> Results:
        results = Results()
        for row in range(len(batch)):
            attempt = Results()
            try:
                self._take(batch, read, (row,), attempt)
            except Exception as error:
                self._cells.roll_back()
                self._services.reject(dead_letter(self._services, batch, row, describe(error)))
            else:
                results.extend(attempt)
        return results

    def _take(self, batch: Batch, read: Any, rows: Iterable[int], results: Results) -> None:
        """Add the given rows and save the cells once; raises what user code raises."""
        by_key: dict[bytes, list[int]] = {}
        keys = batch.keys or []
        for row in rows:
            by_key.setdefault(keys[row], []).append(row)
        if self._lasting and not isinstance(self._window, Session):
            self._take_lasting(batch, read, by_key)
            return
        for key, mine in by_key.items():
            cell = self._cells.get(key)
            if self._sequential:
                for row in mine:
                    self._add_in_order(cell, key, batch, read, row, results)
            elif isinstance(self._window, Session):
                self._add_sessions(cell, self._window.gap_us, batch, read, mine)
            else:
                self._add_grouped(cell, batch, read, mine)
            if cell.windows:
                self._put(key, cell)
        self._cells.save()

    def _take_lasting(self, batch: Batch, read: Any, by_key: Mapping[bytes, list[int]]) -> None:
        """The same where nothing raises and windows keep their bounds: a cell in which no window opens is due
        when it was. One loop without calls of its own, because most of a busy device's time goes here.
        """
        cells, add = self._cells, self._content.add
        at_hand, keep = cells.at_hand, cells.keep
        for key, mine in by_key.items():
            cell = at_hand(key)
            opens = cell is None
            if cell is None:
                cell = cells.get(key)
            windows = cell.windows
            for (start, end), rows in self._grouped(batch, read, mine):
                window = windows.get(start)
                if window is None:
                    windows[start] = OpenWindow(start, end, add(None, batch, read, rows))
                    opens = True
                else:
                    window.held = add(window.held, batch, read, rows)
            if not opens:
                keep(key)
            elif windows:
                self._put(key, cell)
        cells.save()

    def _add_grouped(self, cell: Any, batch: Batch, read: Any, rows: list[int]) -> None:
        for (start, end), group in self._grouped(batch, read, rows):
            self._add(cell, start, end, batch, read, group)

    def _grouped(
        self, batch: Batch, read: Any, rows: list[int]
    ) -> Iterable[tuple[tuple[int, int], list[int]]]:
        """The rows by the bounds of their windows, which no session has before it ends."""
        assign, times = self._assign, batch.times
        if len(rows) == 1:
            return [(bounds, rows) for bounds in assign(times[rows[0]])]
        groups: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            for bounds in assign(times[row]):
                groups.setdefault(bounds, []).append(row)
        return groups.items()

    def _add_sessions(self, cell: Any, gap: int, batch: Batch, read: Any, rows: list[int]) -> None:
        """Add runs of rows that lie closer than the gap, each to one session that swallows all it touches."""
        times = batch.times
        ordered = sorted(rows, key=times.__getitem__)
        runs = [[ordered[0]]]
        for row in ordered[1:]:
            if times[row] < times[runs[-1][-1]] + gap:
                runs[-1].append(row)
            else:
                runs.append([row])
        for run in runs:
            start, end = times[run[0]], times[run[-1]] + gap
            touched = [w for w in cell.windows.values() if w.start < end and start < w.end]
            for window in touched:
                del cell.windows[window.start]
            first, last = min([start, *(w.start for w in touched)]), max([end, *(w.end for w in touched)])
            if touched:
                held = touched[0].held
                for window in touched[1:]:
                    held = self._content.merge(held, window.held)
                cell.windows[first] = OpenWindow(first, last, held)
            self._add(cell, first, last, batch, read, run)

    def _add_in_order(
        self, cell: Any, key: bytes, batch: Batch, read: Any, row: int, results: Results
    ) -> None:
        """Add one record, which is canonically later than all before, and give the early results that it
        brings about.
        """
        time, early = batch.times[row], self._early
        for start, end in self._bounds(cell, time):
            window = cell.windows.get(start)
            if window is not None:
                self._early_by_time(results, key, window, time)
            window = self._add(cell, start, end, batch, read, (row,))
            if isinstance(early, EveryRecords):
                window.count += 1
                if window.count == early.count:
                    window.count = 0
                    self._emit(results, key, window, time)
            elif isinstance(early, EveryTime) and window.boundary is None:
                boundary = early.boundary(start, time)
                window.boundary = boundary

    def _bounds(self, cell: Any, time: int) -> Sequence[tuple[int, int]]:
        """The windows of a record at `time`; a session that it belongs to begins as it did."""
        if not isinstance(self._window, Session):
            return self._window.assign(time)
        end = time + self._window.gap_us
        return [next(((w.start, end) for w in cell.windows.values() if w.start <= time < w.end), (time, end))]

    def _add(self, cell: Any, start: int, end: int, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        window = cell.windows.get(start)
        if window is None:
            held = self._content.add(None, batch, read, rows)
            window = cell.windows[start] = OpenWindow(start, end, held)
        else:
            window.held = self._content.add(window.held, batch, read, rows)
            window.end = end
        return window

    def _early_by_time(self, results: Results, key: bytes, window: Any, time: int) -> None:
        """Give the early result that is due by `time`, which covers all that the window holds."""
        boundary = window.boundary
        if boundary is not None and boundary <= time and boundary < window.fires_at():
            window.boundary = None
            self._emit(results, key, window, boundary - 1)

    def _emit(self, results: Results, key: bytes, window: Any, time: int) -> None:
        step, revision = self._services.step, window.revision
        path = key + encode_key((window.start,)) + child_path(b"", revision)
        window.revision += 1
        try:
            value = self._content.result(window.held, key, window.start, window.end, revision)
        except Exception as error:
            raw = raw_form({"key": decode_key(key), "start": window.start, "end": window.end})
            results.letters.append(DeadLetter(step, Origin(step, 0, path), time, describe(error), raw))
            return
        out = results.batch
        out.values.append(value)
        out.times.append(time)
        out.names.append(step)
        out.numbers.append(0)
        if out.paths is not None:
            out.paths.append(path)

    def _put(self, key: bytes, cell: Any) -> None:
        if cell.windows:
            self._cells.put(key, cell, min([window.due() for window in cell.windows.values()]))
        else:
            self._cells.drop(key)

    def _finished(self, results: Results) -> Batch:
        for letter in results.letters:
            self._services.reject(letter)
        return self._check(results.batch)
