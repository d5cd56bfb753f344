"""The cells of windows that are never rolled back: by key as they are saved, and by when they end.

Stands under `column_windows`. Windows that end together fire together, and a cell is encoded once a commit,
however often it was touched. Guarantees: a saved cell is that of `geartrain.state.keyed`, due when
the first of its windows ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from geartrain.graph.operator import Services
from geartrain.records.event_time import END_OF_TIME
from geartrain.state.keyed import saved_cell
from geartrain.state.state_type import StateType
from geartrain.windowing.open_windows import OpenWindow, windows_type

Windows = list[OpenWindow[Any]]


class WindowCells:
    """The open windows of all keys of one step, which hold what is of the type `kind`."""

    def __init__(self, services: Services, kind: Any, settle: Callable[[], None]) -> None:
        """settle: called before cells are encoded, to take in what still waits."""
        self._store, self._step, self._settle = services.state, services.step, settle
        self._type = StateType(services.step, windows_type(kind), own=True)
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
