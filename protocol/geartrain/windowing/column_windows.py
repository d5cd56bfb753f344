"""Windows of the aggregates that come with Geartrain: their records are taken in by columns, many at a time.

Stands where nothing that is called can raise and windows keep their bounds, so that nothing is ever rolled
back; `windowing` serves all other windows. Records wait, read into columns, until somebody can see whether
they were taken: a window of theirs ends, a commit asks for the cells, or too many wait. What is done once for
each key and window is then shared by all of its records since. Guarantees: the same results and cells as if
each record had been added when it came.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import chain

from geartrain.graph.operator import Services
from geartrain.records.batch import Batch, joined
from geartrain.records.event_time import END_OF_TIME
from geartrain.windowing.contents import ColumnContent, Columns
from geartrain.windowing.open_windows import in_reach
from geartrain.windowing.window_cells import WindowCells
from geartrain.windowing.window_results import Giver, Results, finisher
from geartrain.windowing.windows import Global, Sliding, Tumbling

WAITING_MAX = 32_768
"""Records that wait at the most."""
Bounds = tuple[int, int]


class ColumnWindows:
    """A windowed step at work."""

    def __init__(
        self,
        services: Services,
        window: Tumbling | Sliding | Global,
        content: ColumnContent,
        giver: Giver,
        refused_by: Services | None = None,
    ) -> None:
        """giver: what makes results; refused_by: stands in the dead letters of records, if not the step."""
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
