"""A query whose windows Spark runs, without Spark: its groups as a dictionary, its watermarks as there: what
leaves goes by that of the micro-batch before, what is late by that of the one before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from geartrain.aggregates.ranking import Max, Min
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import ColumnBatch
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.spark.clocks import least_clock
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.native import window_results, window_rows
from geartrain_simulation.fleet.stage_run import LogRow, all_at, source_rows

_GROUP = ("ends", "start", "key", "sink", "letter")
_MS = 1_000


class NativeRun:
    """One query, its groups kept from micro-batch to micro-batch."""

    def __init__(self, query: Query) -> None:
        self.query = query
        operator: Any = query.graph[query.native].operator
        self._kinds = [type(spec.aggregate) for spec in operator.fields.values()]
        self._groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self._late_us = self._watermark_us = 0
        self._clock_us = START_OF_TIME

    def micro_batch(
        self, rows: Iterable[LogRow], at: int | Mapping[str, int]
    ) -> dict[str, list[ColumnBatch]]:
        """What the micro-batch gives to each sink; at: the clock of all sources, or of each."""
        clocks = all_at(self.query, at) if isinstance(at, int) else at
        clock = least_clock(clocks, self.query.sources)
        heartbeat, self._clock_us = clock > self._clock_us, clock
        for batch in window_rows(self.query)(source_rows(rows, clocks, heartbeat=heartbeat)):
            ends: list[Any] = batch.column("ends").cast(pa.int64()).to_pylist()
            for row, end in zip(batch.to_pylist(), ends, strict=True):
                assert end > self._late_us, "Spark would drop this row"
                place = (end, *(row[name] for name in _GROUP[1:]))
                self._groups.setdefault(place, []).append(row)
        due = [place for place in self._groups if place[0] <= self._watermark_us]
        self._late_us = self._watermark_us
        self._watermark_us = max(self._watermark_us, clock // _MS * _MS)
        found: dict[str, list[ColumnBatch]] = {}
        if due:
            for left in window_results(self.query)(iter([self._batch(due)])):
                for row in left.to_pylist():
                    found.setdefault(row["sink"], []).append(unpack(row["packed"]))
        return found

    def _batch(self, due: list[tuple[Any, ...]]) -> pa.RecordBatch:
        added = [self._added(self._groups.pop(place)) for place in due]
        columns = {name: [place[at] for place in due] for at, name in enumerate(_GROUP) if name != "ends"} | {
            f"a{number}": [one[number] for one in added] for number in range(len(self._kinds))
        }
        return pa.record_batch(columns)

    def _added(self, rows: list[dict[str, Any]]) -> list[Any]:
        found: list[Any] = []
        for number, kind in enumerate(self._kinds):
            known = [row[f"v{number}"] for row in rows if row.get(f"v{number}") is not None]
            found.append(_add(kind, known))
        return found


def _add(kind: type, known: list[Any]) -> Any:
    if not known:
        return None
    if kind in (Min, Max):
        extreme: Callable[[list[Any]], Any] = min if kind is Min else max
        return extreme(known)
    return sum(known)
