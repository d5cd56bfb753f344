"""Windows at work: which windows of a key are open, what each holds, and when it gives its result.

Stands under window reduce and fold, and under aggregates of a user's own, of sessions, of early results, and
merged from parts; `column_windows` serves all others. One cell per key holds its open windows and is due when
the first of them is. A window fires once the watermark has reached its end, and is then forgotten.
Guarantees: the same results in whatever order and batches the records came; a record for which user code
raises leaves no trace but a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from geartrain.accumulating.contents import Content
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import Early, EveryRecords, EveryTime, Session, Window
from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import raised_letter
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.windowing.open_windows import Giver, OpenWindow, Results, finisher, in_reach, windows_type


def _no_bounds(time: int) -> tuple[tuple[int, int], ...]:
    """Of a session, which takes its bounds from its records."""
    return ()


class Windowing:
    """A windowed step at work. fallible: taking records may raise, however much the content is trusted."""

    fallible: ClassVar[bool] = False

    def __init__(
        self,
        services: Services,
        window: Window,
        content: Content,
        early: Early | None,
        giver: Giver | None = None,
        refused_by: Services | None = None,
    ) -> None:
        """giver: what makes results, if they are not those of the step itself; refused_by: stands in the dead
        letters of its records, if not the step.
        """
        if isinstance(window, Calendar):
            window.check()
        self._services, self._window, self._content = refused_by or services, window, content
        self._early, self._giver = early, giver or Giver(services, content)
        self._finished = finisher(services)
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
        ready, read = self._content.prepare(in_reach(self._services, batch))
        results = Results()
        try:
            self._take(ready, read, range(len(ready)), results)
        except USER_ERRORS:  # found again, record by record
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
                    self._giver.give(results, key, window, window.fires_at() - 1)
                    del cell.windows[window.start]
            self._put(key, cell)
        cells.save()
        return self._finished(results)

    def _one_by_one(self, batch: Batch, read: Any) -> Results:
        results = Results()
        for row in range(len(batch)):
            attempt = Results()
            try:
                self._take(batch, read, (row,), attempt)
            except USER_ERRORS as error:
                self._cells.roll_back()
                self._services.reject(raised_letter(self._services, batch, row, error))
            else:
                results.extend(attempt)
        return results

    def _take(self, batch: Batch, read: Any, rows: Iterable[int], results: Results) -> None:
        """Add the given rows and save the cells once; raises what user code raises."""
        by_key: dict[bytes, list[int]] = {}
        keys = batch.keys or []
        for row in rows:
            by_key.setdefault(keys[row], []).append(row)
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
                    self._giver.give(results, key, window, time)
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
            self._giver.give(results, key, window, boundary - 1)

    def _put(self, key: bytes, cell: Any) -> None:
        if cell.windows:
            self._cells.put(key, cell, min([window.due() for window in cell.windows.values()]))
        else:
            self._cells.drop(key)
