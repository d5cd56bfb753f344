"""Cells: the form in which the spool keeps records for a sink on the device until they are handed over.

Between the fragment's output and the spool's state; `geartrain_edge.sinks.delivering` uses them. Guarantees:
the records, times and origins that come out of a cell are those that went in. A record has the same identity
each time it is read. A record too large for any cell is refused alone, and the others are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from geartrain.declarations.device_sink import Delivery
from geartrain.errors import WireError
from geartrain.records.batch import Batch
from geartrain.records.codes import Code, Refusal
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.schema.plain import plain_rows
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.envelope import BatchKind, Header
from geartrain.wire.limits import Limits

_PREFIX = b"cell/"

Refuse = Callable[[str, Batch, int, Refusal], None]
"""Takes (step, batch, row, reason) of a record that goes nowhere."""


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """A cell as the spool keeps it; body: the rows as they travel."""

    sink: str
    epoch: str
    seq: int
    first_index: int
    count: int
    flags: int
    first_number: int
    body: bytes


class Cell(msgspec.Struct, frozen=True):
    """A cell, and the key under which the spool has it."""

    key: bytes
    stored: Stored

    @classmethod
    def numbered(cls, number: int, stored: Stored) -> Cell:
        """number: in the order in which cells of all sinks came."""
        return cls(_PREFIX + number.to_bytes(8, "big"), stored)

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Cell:
        """Out of the spool."""
        return cls(key, msgspec.msgpack.decode(value, type=Stored))

    @property
    def number(self) -> int:
        """Its place in that order."""
        return int.from_bytes(self.key.removeprefix(_PREFIX), "big")

    @property
    def value(self) -> bytes:
        """What the spool holds under its key."""
        return msgspec.msgpack.encode(self.stored)


class CellCodec:
    """Records of one sink to what cells store of them, and back."""

    def __init__(
        self, step: str, rows: RowCodec, flow: str, device: str, limits: Limits, refuse: Refuse
    ) -> None:
        """`refuse`: takes the records that are too large."""
        self._step, self._rows, self._flow, self._device = step, rows, flow, device
        self._limits, self._refuse = limits, refuse

    def to_stored(self, batch: Batch, epoch: str, seq: int, index: int) -> Iterator[Stored]:
        """All of `batch`, in as few cells as hold it; index: of its first row among those of batch `seq`."""
        columns = ColumnBatch(
            self._rows.to_columns(batch.values), batch.times, batch.names, batch.numbers, batch.paths
        )
        try:
            rows = encode_rows(self._rows.schema, columns, self._limits)
        except WireError as error:
            if len(batch) == 1:
                refusal = Refusal(Code.TOO_LARGE, f"this record cannot be kept: {error}")
                self._refuse(self._step, batch, 0, refusal)
                return
            middle = len(batch) // 2
            yield from self.to_stored(batch.take(range(middle)), epoch, seq, index)
            rest = batch.take(range(middle, len(batch)))
            yield from self.to_stored(rest, epoch, seq, index + middle)
        else:
            beside = (rows.flags, rows.first_number, rows.body)
            yield Stored(self._step, epoch, seq, index, len(batch), *beside)

    def to_batch(self, stored: Stored) -> Batch:
        """What went in."""
        rows = self._columns(stored)
        return Batch(self._rows.from_columns(rows.fields), rows.times, rows.names, rows.numbers, rows.paths)

    def to_plain(self, stored: Stored) -> Iterator[tuple[dict[str, Any], Delivery]]:
        """Each record as values of JSON, and what a sink may know it by."""
        rows = self._columns(stored)
        for row, value in enumerate(plain_rows(self._rows.schema, rows)):
            yield value, _identity(stored, row, rows.times[row])

    def _columns(self, stored: Stored) -> ColumnBatch:
        schema = self._rows.schema
        beside = (self._step, schema.schema_id, stored.count, stored.first_number)
        header = Header(BatchKind.DATA, self._flow, self._device, bytes(8), 1, *beside, flags=stored.flags)
        return decode_rows(schema, header, stored.body, self._limits)


def with_identity(stored: Stored, batch: Batch) -> Iterator[tuple[Any, Delivery]]:
    """Each value of a cell, and what a sink may know it by."""
    for row, value in enumerate(batch.values):
        yield value, _identity(stored, row, batch.times[row])


def _identity(stored: Stored, row: int, time_us: int) -> Delivery:
    return Delivery(stored.epoch, stored.seq, stored.first_index + row, time_us)
