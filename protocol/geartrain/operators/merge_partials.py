"""merge partials: the part of a windowed aggregate that stands in the cloud.

It reads the rows that the `partial_aggregate` of each device has given, merges those of one key and window,
and gives the aggregate's result. Guarantees: value, event time and origin of each result, and the dead letter
of one that cannot be, are those of the aggregate that was not split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from geartrain.accumulating.aggregating import Aggregating
from geartrain.accumulating.contents import without
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import Global, Window
from geartrain.errors import USER_ERRORS, StepError
from geartrain.graph.conform import describe
from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.operators.aggregate import WindowAggregate
from geartrain.records.batch import Batch
from geartrain.records.codes import Code
from geartrain.records.event_time import END_OF_TIME
from geartrain.state.told import Told, opened
from geartrain.windowing.open_windows import told_windows, windows_type
from geartrain.windowing.windowing import Windowing

A = TypeVar("A")


class Merged(msgspec.Struct, Generic[A], array_like=True):
    """The accumulators of all devices, or why they could not be merged."""

    held: A | None
    broken: str = ""


@lru_cache(maxsize=256)
def _merged_type(kind: Any) -> Any:
    return Merged[kind]


class MergePartials(Keyed, frozen=True):
    """Merge the rows of the partials of `whole`, an aggregate of records of the type `record`."""

    whole: WindowAggregate
    record: Any
    kind = "merge_partials"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost, and there is no domain: its keys are on many devices."""
        return StreamProperties(None, False, timely=inputs[0].timely)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        content = _Merging(services, self.whole, self.record)
        return _MergedWindows(services, self.whole.window, content, None)

    def adopted(self, services: Services, cell: bytes) -> bytes:
        """A saved cell of the aggregate while it was not split, as a cell of this step; raises `SchemaError`
        for a cell of another type.
        """
        kind = _Merging(services, self.whole, self.record).whole_kind
        found = opened(services.step, windows_type(kind), cell)
        for window in found.windows.values():
            window.held = Merged(window.held)
        return cell[:8] + msgspec.msgpack.encode(found)

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The open windows of the key, of what devices have sent so far."""
        return told_windows(services, _Merging(services, self.whole, self.record), key, cell)


class _Merging(Aggregating):
    """What `Content` asks for, over rows instead of records."""

    def __init__(self, services: Services, whole: WindowAggregate, record: Any) -> None:
        over_records = replace(services, inputs=(record,))
        super().__init__(over_records, whole.fields, whole.key_fields, whole.window)
        self._window = whole.window
        self.whole_kind = self.kind
        self.kind = _merged_type(self.kind)

    def prepare(self, batch: Batch) -> tuple[Batch, Any]:
        """Take the rows apart; one whose event time is not that of its window's result is a dead letter."""
        read = list(map(msgspec.structs.astuple, batch.values))
        refused = {
            row: f"a partial aggregate of the window from {start} cannot have the event time {time}"
            for row, ((_, start, *_), time) in enumerate(zip(read, batch.times, strict=True))
            if not _has_result(self._window, start, time)
        }
        if not refused:
            return batch, read
        kept = without(self._services, batch, refused, Code.NO_WINDOW)
        return batch.take(kept), [read[row] for row in kept]

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """The accumulators with those of the given rows; raises for one that cannot be read."""
        for row in rows:
            _, _, *packed = read[row]
            more = self._parts.unpack(packed)  # made here, since merging may change it
            if held is None:
                held = Merged(more)
            elif not held.broken:
                held = self._merged(held, more)
        return held

    def _merged(self, held: Any, more: Any) -> Any:
        try:
            held.held = self._parts.merge(held.held, more)
        except USER_ERRORS as error:
            return Merged(None, f"its partial aggregates cannot be merged: {describe(error)}")
        return held

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """The record of all results; raises what user code raises."""
        if held.broken:
            raise StepError(held.broken)
        return super().result(held.held, key, start, end, revision)


class _MergedWindows(Windowing):
    """Windows that are told by the rows, not by event time; a row that cannot be read raises."""

    fallible = True

    def _grouped(
        self, batch: Batch, read: Any, rows: list[int]
    ) -> Iterable[tuple[tuple[int, int], list[int]]]:
        groups: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            start = read[row][1]
            end = _end(self._window, start)  # there is one: `prepare` has looked
            groups.setdefault((start, start if end is None else end), []).append(row)
        return groups.items()


def _has_result(window: Window, start: int, time: int) -> bool:
    """Whether `time` is that of the result of a window that begins at `start`."""
    end = _end(window, start)
    return end is not None and time == min(end, END_OF_TIME) - 1


def _end(window: Window, start: int) -> int | None:
    """The end of the window that begins at `start`; None where a calendar has none. The planner splits no
    sessions.
    """
    if isinstance(window, Calendar):
        return window.end(start)
    return END_OF_TIME if isinstance(window, Global) else start + window.size_us  # type: ignore[union-attr]
