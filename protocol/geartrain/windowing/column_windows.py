"""Windows of the aggregates that come with Geartrain: their records are taken in by columns, many at a time.

Stands where nothing that is called can raise and windows keep their bounds, so that nothing is ever rolled
back; `windowing` serves all other windows. Records wait, read into columns, until somebody can see whether
they were taken: a window of theirs ends, a commit asks for the cells, or too many wait. What is done once for
each key and window is then shared by all of its records since. Guarantees: the same results and cells as if
each record had been added when it came. Windows that end together fire together, and a cell is encoded once a
commit, however often it was touched.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from geartrain.accumulating.contents import ColumnContent, Columns
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import Global, Sliding, Tumbling
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch, joined
from geartrain.records.event_time import END_OF_TIME
from geartrain.state.keyed import saved_cell
from geartrain.windowing.open_windows import Giver, OpenWindow, Results, finisher, in_reach, windows_type

Windows = list[OpenWindow[Any]]


class WindowCells:
    """The open windows of all keys of one step, which hold what is of the type `kind`."""

    def __init__(self, services: Services, kind: Any, settle: Callable[[], None]) -> None:
        """settle: called before cells are encoded, to take in what still waits."""
        self._store, self._step, self._settle = services.state, services.step, settle
        self._type = services.state.typed(services.step, windows_type(kind), own=True)
        self._cells: dict[bytes, Any] = {}
        self._unsaved: set[bytes] = set()
        self._ending: dict[int, list[bytes]] = {}  # by start: windows of one start have one end
        self._ends: list[tuple[int, int]] = []
        self._store.holds(self)

    def windows(self, start: int, end: int, keys: Iterable[bytes]) -> Windows:
        """The window [start, end) of each key, opened where it was not; what it holds will be changed."""
        cells, found, opened = self._cells, [], []
        for key in keys:
            cell = cells.get(key)
            if cell is None:
                cell = self._load(key)
            window = cell.windows.get(start)
            if window is None:
                window = cell.windows[start] = OpenWindow(start, end, None)
                opened.append(key)
            found.append(window)
        self._await(start, end, opened)
        self._unsaved.update(keys)
        return found

    def ended(self, watermark: int) -> Iterator[tuple[list[bytes], Windows]]:
        """Take out the windows that end at `watermark` or before: keys in order and the window of each, by
        (end, start).
        """
        for key in self._store.due(self._step, watermark):
            if key not in self._cells:
                self._load(key)
        cells = self._cells
        while self._ends and self._ends[0][0] <= watermark:
            _, start = heappop(self._ends)
            keys = sorted(self._ending.pop(start))
            self._unsaved.update(keys)
            yield keys, [cells[key].windows.pop(start) for key in keys]

    def encoded(self) -> dict[tuple[str, bytes], bytes | None]:
        """The cells that changed since the last call, None for those without a window."""
        self._settle()
        found: dict[tuple[str, bytes], bytes | None] = {}
        step, cells, save = self._step, self._cells, self._type.save
        for key in self._unsaved:
            cell = cells[key]
            if cell.windows:
                due = min([window.end for window in cell.windows.values()])
                found[step, key] = saved_cell(min(due, END_OF_TIME), save(cell))
            else:
                del cells[key]
                self._store.forget(step, key)
                found[step, key] = None
        self._unsaved.clear()
        return found

    def _load(self, key: bytes) -> Any:
        saved = self._store.load(self._step, key)
        cell = self._type.make() if saved is None else self._type.load(saved[8:])
        self._cells[key] = cell
        for window in cell.windows.values():
            self._await(window.start, window.end, [key])
        return cell

    def _await(self, start: int, end: int, opened: list[bytes]) -> None:
        """Note keys for which the window [start, end) was opened."""
        if start in self._ending:
            self._ending[start] += opened
        elif opened:
            self._ending[start] = opened
            heappush(self._ends, (min(end, END_OF_TIME), start))


WAITING_MAX = 32_768
"""Records that wait at the most."""
Bounds = tuple[int, int]


class ColumnWindows:
    """A windowed step at work."""

    def __init__(
        self,
        services: Services,
        window: Tumbling | Sliding | Global | Calendar,
        content: ColumnContent,
        giver: Giver,
        refused_by: Services | None = None,
    ) -> None:
        """giver: what makes results; refused_by: stands in the dead letters of records, if not the step."""
        if isinstance(window, Calendar):
            window.check()
        self._window, self._content, self._giver = window, content, giver
        self._refused_by = refused_by or services
        self._cells = WindowCells(services, content.kind, self._take)
        self._finished = finisher(services)
        self._waiting: list[tuple[Batch, Columns]] = []
        self._count, self._first_end = 0, END_OF_TIME
        self._overlap = 1 + window.size_us // window.every_us if isinstance(window, Sliding) else 1

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records; nothing leaves."""
        ready, columns = self._content.prepare(in_reach(self._refused_by, batch))
        if len(ready):
            times = ready.times  # stand in for the values too, which nobody asks for any more
            self._waiting.append(
                (Batch(times, times, ready.names, ready.numbers, ready.paths, ready.keys), columns)
            )
            self._count += len(times)
            earliest = min(times)
            bounds = self._window.assign(earliest)
            self._first_end = min(self._first_end, bounds[0][1] if bounds else earliest)
            if self._count >= WAITING_MAX:
                self._take()
        return Batch([], [], [], [], [])

    def advance(self, watermark: int) -> Batch:
        """The results of the windows that end at `watermark` or before."""
        if self._first_end <= watermark:
            self._take()
        results = Results()
        for keys, windows in self._cells.ended(watermark):
            self._giver.give_all(results, keys, windows)
        return self._finished(results)

    def _take(self) -> None:
        """Add what waits to its windows."""
        if not self._waiting:
            return
        batch, read = joined([batch for batch, _ in self._waiting]), [read for _, read in self._waiting]
        columns = [list(chain.from_iterable(parts)) for parts in zip(*read, strict=True)]
        self._waiting, self._count, self._first_end = [], 0, END_OF_TIME
        rows_max = max(1, WAITING_MAX // self._overlap)
        for first in range(0, len(batch), rows_max):
            rows = range(first, min(first + rows_max, len(batch)))
            for (start, end), mine in self._by_bounds(batch.times, rows):
                self._add(start, end, batch, columns, mine)

    def _add(self, start: int, end: int, batch: Batch, columns: Columns, rows: Sequence[int]) -> None:
        groups: defaultdict[bytes, list[int]] = defaultdict(list)
        keys = map((batch.keys or []).__getitem__, rows)
        deque(map(list.append, map(groups.__getitem__, keys), rows), maxlen=0)  # a loop without a name
        windows = self._cells.windows(start, end, groups)
        held = self._content.add_groups([w.held for w in windows], batch, columns, list(groups.values()))
        for window, now in zip(windows, held, strict=True):
            window.held = now

    def _by_bounds(self, times: list[int], rows: range) -> Iterable[tuple[Bounds, Sequence[int]]]:
        """Some rows by the bounds of their windows."""
        assign, mine = self._window.assign, times[rows.start : rows.stop]
        first = assign(min(mine))
        if first and first == assign(max(mine)):  # no other window lies between the two
            return [(bounds, rows) for bounds in first]
        groups: dict[Bounds, list[int]] = {}
        last, lists = None, list[list[int]]()
        for row, time in zip(rows, mine, strict=True):
            if time != last:
                last, lists = time, [groups.setdefault(bounds, []) for bounds in assign(time)]
            for found in lists:
                found.append(row)
        return groups.items()
