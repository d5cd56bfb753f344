"""Records that an operator holds in the state of a key, with their place in canonical order.

Used by order, joins and windows that need their records in order. Guarantees: a record comes out of a saved
state as it went in, bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.records.batch import Batch

T = TypeVar("T")


class HeldRow(msgspec.Struct, Generic[T], array_like=True, gc=False):
    """One record: its event time (microseconds), origin and value."""

    time: int
    name: str
    number: int
    path: bytes
    value: T

    @staticmethod
    def of(batch: Batch, row: int) -> HeldRow[Any]:
        """The record at `row` of a batch."""
        path = b"" if batch.paths is None else batch.paths[row]
        return HeldRow(batch.times[row], batch.names[row], batch.numbers[row], path, batch.values[row])

    def order(self) -> tuple[int, str, int, bytes]:
        """What canonical order sorts by."""
        return self.time, self.name, self.number, self.path

    def append_to(self, batch: Batch, key: bytes | None = None) -> None:
        """Add the record to a batch made by `Held.output`."""
        batch.values.append(self.value)
        batch.times.append(self.time)
        batch.names.append(self.name)
        batch.numbers.append(self.number)
        if batch.paths is not None:
            batch.paths.append(self.path)
        if batch.keys is not None and key is not None:
            batch.keys.append(key)


class Held(msgspec.Struct, Generic[T], array_like=True):
    """The records of one key that wait, in no order."""

    rows: list[HeldRow[T]] = []

    @staticmethod
    def output(*, keyed: bool = False) -> Batch:
        """An empty batch to append rows to."""
        return Batch([], [], [], [], [], [] if keyed else None)


@lru_cache(maxsize=256)
def held_type(kind: Any) -> Any:
    """The state type of a key whose held records are of the Python type `kind`."""
    return Held[kind]
