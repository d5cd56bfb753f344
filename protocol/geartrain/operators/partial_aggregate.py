"""partial aggregate: the part of a windowed aggregate that stands on each device.

The planner puts it in place of a windowed aggregate whose keys are not local to a device, with a
`merge_partials` in the cloud. Once the device's watermark has passed a window's end it gives one row for that
window and key: the accumulators of what this device has seen. Guarantees: dead letters are those of the
aggregate itself, under its name. A row has the event time of the window's result, and the origin of the
canonically first record in it. So no two rows of one key, from whatever device, have the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from geartrain.accumulating.contents import Columns, settler, without
from geartrain.accumulating.partial_types import row_type
from geartrain.accumulating.parts import Parts
from geartrain.declarations.windows import Session
from geartrain.errors import StepError
from geartrain.graph.operator import Keyed, Plain, Running, Services, StreamProperties, Transform
from geartrain.operators.aggregate import WindowAggregate
from geartrain.records.batch import Batch
from geartrain.records.codes import Code
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import decode_key, encode_key
from geartrain.windowing.column_windows import ColumnWindows
from geartrain.windowing.open_windows import Giver, OpenWindow, Results
from geartrain.windowing.windowing import Windowing
from geartrain.wire.limits import LIMITS

A = TypeVar("A")
Place = tuple[int, str, int, bytes]
"""Event time, and origin."""
KEY_TYPES = (str, int, bool, bytes)
"""The types of keys that have a column of their own type; others travel encoded."""


class Begun(msgspec.Struct, Generic[A], array_like=True):
    """The accumulators of a window, and the place of the first record in it."""

    held: A
    time: int
    name: str
    number: int
    path: bytes


@lru_cache(maxsize=256)
def _begun_type(kind: Any) -> Any:
    return Begun[kind]


class PartialAggregate(Keyed, frozen=True):
    """`whole`, the aggregate of the step `step`, over what one device has seen.

    key_type: that of the key where it is one of `KEY_TYPES`, None where it travels encoded.
    """

    whole: WindowAggregate
    step: str
    key_type: Any = None
    kind = "partial_aggregate"

    @property
    def row_key(self) -> RowKey:
        """What gives its rows their keys again, where they have come over a channel."""
        return RowKey(encoded=self.key_type is None)

    def row(self, name: str, record: Any) -> Any:
        """The type of its rows, called `name`, over records of the type `record`."""
        parts = Parts(self.whole.fields, record, settler(self.step))
        return row_type(name, _fields("bytes" if self.key_type is None else self.key_type.__name__, parts))

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and domain are lost."""
        return StreamProperties(None, False, timely=inputs[0].timely)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        own = replace(services, step=self.step)
        content = _Accumulating(own, self.whole, encoded=self.key_type is None)
        window, giver = self.whole.window, _RowGiver(content)
        if content.trusted and not isinstance(window, Session):
            return ColumnWindows(services, window, content, giver, own)
        return Windowing(services, window, content, None, giver, own)


class RowKey(Plain, frozen=True):
    """Key the rows of a partial aggregate as the records were keyed that they were made of."""

    encoded: bool
    kind = "key_by"

    def open(self, services: Services) -> Transform:
        """A function from a batch to the same batch with encoded keys."""
        encoded = self.encoded

        def run(batch: Batch) -> Batch:
            keys = [value[0] for value in map(msgspec.structs.astuple, batch.values)]
            if not encoded:
                keys = list(map(encode_key, keys))
            return Batch(batch.values, batch.times, batch.names, batch.numbers, batch.paths, keys)

        return run


def _fields(key: str, parts: Parts) -> list[tuple[str, str]]:
    """Key, window start, and a column for each accumulator, which has the name of its aggregate."""
    columns = parts.columns()
    taken = {name for name, _ in columns}
    found = []
    for name, kind in (("key", key), ("start", "int")):
        while name in taken:
            name += "_"
        found.append((name, kind))
    return [*found, *columns]


class _Accumulating:
    """What `Content` asks for: accumulators, and the place of their first record."""

    sequential = False

    def __init__(self, services: Services, whole: WindowAggregate, *, encoded: bool) -> None:
        self._services, self._encoded = services, encoded
        self._parts = Parts(whole.fields, services.inputs[0], settler(services.step))
        self._out = services.out
        self.kind, self.trusted = _begun_type(self._parts.kind), self._parts.trusted

    def prepare(self, batch: Batch) -> tuple[Batch, Columns]:
        """Read what each aggregate takes of each record; a record of which one cannot is a dead letter."""
        refused: dict[int, str] = {}
        columns = self._parts.read(batch.values, refused)
        if not refused:
            return batch, columns
        kept = without(self._services, batch, refused, Code.WRONG_TYPE)
        return batch.take(kept), [[column[row] for row in kept] for column in columns]

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """The accumulators with the given rows."""
        accs = self._parts.add(None if held is None else held.held, batch, read, rows)
        return _begun(held, accs, _first(batch, rows))

    def add_groups(
        self, held: Sequence[Any], batch: Batch, columns: Columns, groups: Sequence[list[int]]
    ) -> Sequence[Any]:
        """The accumulators of each group with its rows."""
        inner = [None if one is None else one.held for one in held]
        added = self._parts.add_groups(inner, batch, columns, groups)
        return [
            _begun(one, accs, _first(batch, rows))
            for one, accs, rows in zip(held, added, groups, strict=True)
        ]

    def merge(self, left: Any, right: Any) -> Any:
        """Never asked: sessions are not split."""
        raise StepError(f"step {self._services.step!r}: parts of a window meet in the cloud only")

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """The row of a window; raises `StepError` for one that no batch could take."""
        packed = self._parts.pack(held.held)
        sizes = [len(column) for column in packed if type(column) is bytes]
        if sizes and (max(sizes) > LIMITS.text_bytes_max or sum(sizes) > LIMITS.sent_body_bytes_max // 2):
            raise StepError(
                f"step {self._services.step!r}: the partial aggregate of key {decode_key(key)!r} has "
                f'{sum(sizes):,} bytes, more than a batch can take: pin the step with .at("cloud"), or let '
                "it keep less (distinct with exact=False, top_n of fewer, shorter windows)"
            )
        return self._out(key if self._encoded else decode_key(key), start, *packed)


def _begun(held: Any, accs: Any, first: Place) -> Begun[Any]:
    """`held`, None at first, with the accumulators `accs`, to which a group was added whose first record
    stands at `first`.
    """
    if held is None:
        return Begun(accs, *first)
    held.held = accs
    if first < (held.time, held.name, held.number, held.path):
        held.time, held.name, held.number, held.path = first
    return held  # type: ignore[no-any-return]


def _first(batch: Batch, rows: Sequence[int]) -> Place:
    """The place of the canonically first of some rows."""
    times, names, numbers, paths = batch.times, batch.names, batch.numbers, batch.paths
    time = min([times[row] for row in rows])
    return min(
        (time, names[row], numbers[row], b"" if paths is None else paths[row])
        for row in rows
        if times[row] == time
    )


class _RowGiver(Giver):
    """Gives rows instead of results."""

    def __init__(self, content: _Accumulating) -> None:
        self._content = content

    def give(self, results: Results, key: bytes, window: OpenWindow[Any], time: int) -> None:
        """The row of a window, keyed, at the place of the first record in it."""
        held, out = window.held, results.batch
        # Windows that END_OF_TIME has cut short have one time, and may begin with one record.
        tail = encode_key((window.start,)) if window.end > END_OF_TIME else b""
        out.values.append(self._content.result(held, key, window.start, window.end, 0))
        out.times.append(time)
        out.names.append(held.name)
        out.numbers.append(held.number)
        if out.paths is not None:
            out.paths.append(held.path + tail)
        out.keys = out.keys or []
        out.keys.append(key)
