"""broadcast: each record of a stream together with a small table, the last record per key of another stream.

The table is as of the record's event time: at equal times the small record counts already, wherever it was
born. So records wait until the watermark has passed them. The step needs all of the small stream, which only
the cloud has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, raised_letter
from geartrain.graph.operator import Keyed, Running, Services
from geartrain.records.batch import Batch
from geartrain.records.keys import encode_key
from geartrain.state.held import HeldRow

M = TypeVar("M")
S = TypeVar("S")

MAIN, SMALL = 0, 1
TABLE_KEY = b"t"
"""Under which a broadcast keeps its table; every slot in the data centre has it whole."""
_MAIN = b"m"


class Broadcast(Keyed, frozen=True):
    """`function(value, table)` for each record of input 0. The table maps the `key` (a field, or a function)
    of the records of input 1 to the canonically last of them. None of them has a later event time than the
    record.
    """

    key: str | Callable[[Any], Any]
    function: Callable[[Any, Mapping[Any, Any]], Any]
    kind = "broadcast"
    only_tier = "cloud"
    broadcast_ports = (SMALL,)

    def key_of(self) -> Callable[[Any], Any]:
        """The function from a small record to its key."""
        return attrgetter(self.key) if isinstance(self.key, str) else self.key

    def open(self, services: Services) -> Running:
        """The operator at work; one cell holds the table's versions, others the records that wait."""
        return _Broadcasting(self, services)


class _Cell(msgspec.Struct, Generic[M, S], array_like=True):
    """Records of one of the two inputs; the other list is empty."""

    main: list[HeldRow[M]] = []
    small: list[HeldRow[S]] = []


@lru_cache(maxsize=256)
def _cell_type(main: Any, small: Any) -> Any:
    return _Cell[main, small]


def is_known(small: HeldRow[Any], row: HeldRow[Any]) -> bool:
    """Whether the table has a small record for this one: from its event time on, whatever gave it."""
    return small.time <= row.time


class _Broadcasting:
    def __init__(self, declared: Broadcast, services: Services) -> None:
        kind = _cell_type(services.inputs[MAIN], services.inputs[SMALL])
        self._cells = services.state.of_step(services.step, kind, own=True)
        self._function, self._key = declared.function, declared.key_of()
        self._services, self._check = services, checker(services)

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records of either input; none leaves before time does."""
        rows = [HeldRow.of(batch, row) for row in range(len(batch))]
        if port == SMALL:
            rows = [row for at, row in enumerate(rows) if self._has_key(batch, at)]
            self._keep_table(self._cells.get(TABLE_KEY).small + rows)
        elif rows:
            first = min(rows, key=HeldRow.order)
            self._keep_main(_MAIN + encode_key(first.order()), rows)
        self._cells.save()
        return Batch([], [], [], [])

    def _has_key(self, batch: Batch, row: int) -> bool:
        try:
            encode_key(self._key(batch.values[row]))
        except USER_ERRORS as error:
            self._services.reject(raised_letter(self._services, batch, row, error))
            return False
        return True

    def advance(self, watermark: int) -> Batch:
        """The results of the records below the watermark, in canonical order."""
        ready: list[HeldRow[Any]] = []
        fold = False
        for key in self._cells.due(watermark):
            if key == TABLE_KEY:
                fold = True
                continue
            waiting = self._cells.get(key).main
            ready += [row for row in waiting if row.time < watermark]
            self._keep_main(key, [row for row in waiting if row.time >= watermark])
        ready.sort(key=HeldRow.order)
        versions = self._cells.get(TABLE_KEY).small if ready or fold else []
        out = self._results(ready, versions)
        if fold:
            self._keep_table(self._folded(versions, watermark))
        self._cells.save()
        return self._check(out)

    def _results(self, ready: list[HeldRow[Any]], versions: list[HeldRow[Any]]) -> Batch:
        out = Batch([], [], [], [], [])
        table: dict[Any, Any] = {}
        seen, at = MappingProxyType(table), 0
        for row in ready:
            while at < len(versions) and is_known(versions[at], row):
                key = self._key(versions[at].value)
                table.pop(key, None)  # what is read one by one comes in canonical order
                table[key] = versions[at].value
                at += 1
            try:
                value = self._function(row.value, seen)
            except USER_ERRORS as error:
                single = Batch([row.value], [row.time], [row.name], [row.number], [row.path])
                self._services.reject(raised_letter(self._services, single, 0, error))
                continue
            HeldRow(row.time, row.name, row.number, row.path, value).append_to(out)
        return out

    def _keep_main(self, key: bytes, rows: list[HeldRow[Any]]) -> None:
        """Hold rows that wait, under a key of their own: that of one row that was among them."""
        if rows:
            cell = self._cells.get(key)
            cell.main = rows
            self._cells.put(key, cell, min(row.time for row in rows) + 1)
        else:
            self._cells.drop(key)

    def _keep_table(self, versions: list[HeldRow[Any]]) -> None:
        """Hold the table's versions in canonical order; due when the first may replace an older one."""
        versions.sort(key=HeldRow.order)
        seen: set[bytes] = set()
        due = None
        for row in versions:
            key = encode_key(self._key(row.value))
            if key in seen:
                due = row.time + 1
                break
            seen.add(key)
        cell = self._cells.get(TABLE_KEY)
        cell.small = versions
        self._cells.put(TABLE_KEY, cell, due)

    def _folded(self, versions: list[HeldRow[Any]], watermark: int) -> list[HeldRow[Any]]:
        """The versions without those that a later one below the watermark replaced: no record that waits or
        will come is before it.
        """
        newest = {encode_key(self._key(row.value)): row for row in versions if row.time < watermark}
        return [*newest.values(), *(row for row in versions if row.time >= watermark)]
