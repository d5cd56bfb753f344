"""A batch of records in columns, and the origin that gives each its place in canonical order.

This is what moves between the operators of a fragment, on a device and in the data centre alike.
Guarantees: all columns have one length; canonical order is (event time, origin name, number, path), unique
within a stream and independent of the cut. A name begins with the step where the record was born.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class Origin(msgspec.Struct, frozen=True, order=True):
    """Where a record was born: `name` of the step and split, its `number` there, and the `path` of child
    indexes below it.
    """

    name: str
    number: int
    path: bytes = b""


def origin_name(step: str, split: str) -> str:
    """The name in the origins of a split's records. Step ids have no `/`, so no two sources share a name, and
    the flow alone says which of two sources comes first: not the device that reads it.
    """
    return f"{step}/{split}"


def source_of(name: str) -> str:
    """The step that the name in an origin begins with: of a source's record the source."""
    return name.partition("/")[0]


def child_path(path: bytes, index: int) -> bytes:
    """Append a child's index to a path so that byte order of paths is the order of the index tuples.

    An index below 248 is one byte; a larger one is 247 + n followed by its n big-endian bytes, the
    prefix scheme of SQLite4's variable-length integers.
    """
    if index < 248:
        return path + index.to_bytes(1, "big")
    size = (index.bit_length() + 7) // 8
    return path + (247 + size).to_bytes(1, "big") + index.to_bytes(size, "big")


class Batch(msgspec.Struct):
    """Records of one stream, as columns.

    values: the records; times: their event times in microseconds; names, numbers, paths: their origins
    (`paths` is None while every path is empty, the common case of a plain chain); keys: encoded keys, one a
    record, once the stream is keyed, else None.
    """

    values: list[Any]
    times: list[int]
    names: list[str]
    numbers: list[int]
    paths: list[bytes] | None = None
    keys: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def origin(self, row: int) -> Origin:
        """The origin of the record at `row`."""
        return Origin(self.names[row], self.numbers[row], self.paths[row] if self.paths is not None else b"")

    def take(self, rows: Sequence[int]) -> Batch:
        """A new batch of the given rows, in the given order."""
        return Batch(
            list(map(self.values.__getitem__, rows)),
            list(map(self.times.__getitem__, rows)),
            list(map(self.names.__getitem__, rows)),
            list(map(self.numbers.__getitem__, rows)),
            None if self.paths is None else list(map(self.paths.__getitem__, rows)),
            None if self.keys is None else list(map(self.keys.__getitem__, rows)),
        )

    def where(self, kept: Sequence[bool]) -> Batch:
        """A new batch of the rows for which `kept` is true."""
        return Batch(
            list(compress(self.values, kept)),
            list(compress(self.times, kept)),
            list(compress(self.names, kept)),
            list(compress(self.numbers, kept)),
            None if self.paths is None else list(compress(self.paths, kept)),
            None if self.keys is None else list(compress(self.keys, kept)),
        )

    def slices(self, size: int) -> Iterable[Batch]:
        """Cut into batches of at most `size` records, in order."""
        if len(self) <= size:
            yield self
            return
        for start in range(0, len(self), size):
            yield self.take(range(start, min(start + size, len(self))))


def joined(batches: Sequence[Batch]) -> Batch:
    """The records of several batches of one stream as one, in order."""
    if len(batches) == 1:
        return batches[0]
    some_paths = any(batch.paths is not None for batch in batches)
    return Batch(
        _end_to_end(batch.values for batch in batches),
        _end_to_end(batch.times for batch in batches),
        _end_to_end(batch.names for batch in batches),
        _end_to_end(batch.numbers for batch in batches),
        _end_to_end(batch.paths or [b""] * len(batch) for batch in batches) if some_paths else None,
        _end_to_end(batch.keys or [] for batch in batches) if batches[0].keys is not None else None,
    )


def _end_to_end(columns: Iterable[list[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


class DeadLetter(msgspec.Struct, frozen=True):
    """An input that could not be processed: where, why, and the raw value; travels on `_dead_letters`.

    step: the id of the step that refused it; event_time: microseconds, or None where it has none; code: what
    kind of refusal it is, of geartrain.records.codes or of a source; reason: one sentence; raw: the input's
    bytes (the raw row of a source, else the JSON form of the record); value: the record itself, of a late
    one.
    """

    step: str
    origin: Origin
    event_time: int | None
    code: str
    reason: str
    raw: bytes = b""
    value: Any = None

    def __eq__(self, other: object) -> bool:  # a record of a user's may be equal to nothing
        return isinstance(other, DeadLetter) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[object, ...]:
        return self.step, self.origin, self.event_time, self.code, self.reason, self.raw
