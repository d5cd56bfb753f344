"""Packed rows: many records in one binary value, the form in which they travel between the parts of a query.

Between the first steps, the fragments inside Spark and the sinks. Spark's own cost is per row, so one Spark
row holds thousands of records: unpacked rows move four times slower. They are msgpack of columns. Both ends
are Python, and msgpack needs half of Arrow's time to make lists of Python values. Guarantees:
`unpack(pack(x))` is `x`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from geartrain.schema import ColumnBatch


class _Packed(msgspec.Struct, array_like=True, gc=False):
    """The columns of a batch; `names` is one text where all rows come from one split."""

    fields: list[list[Any]]
    times: list[int]
    names: list[str] | str
    numbers: list[int]
    paths: list[bytes] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pack(rows: ColumnBatch) -> bytes:
    """Rows of one schema as bytes."""
    one = rows.names and rows.names.count(rows.names[0]) == len(rows.names)
    names: list[str] | str = rows.names[0] if one else rows.names
    return _encode(_Packed(rows.fields, rows.times, names, rows.numbers, rows.paths))


def unpack(packed: bytes) -> ColumnBatch:
    """The rows that `pack` was given."""
    held = _decode(packed)
    names = [held.names] * len(held.times) if isinstance(held.names, str) else held.names
    return ColumnBatch(held.fields, held.times, names, held.numbers, held.paths)


def take(rows: ColumnBatch, indexes: Sequence[int]) -> ColumnBatch:
    """The rows at `indexes`, in that order."""
    return ColumnBatch(
        [[column[i] for i in indexes] for column in rows.fields],
        [rows.times[i] for i in indexes],
        [rows.names[i] for i in indexes],
        [rows.numbers[i] for i in indexes],
        None if rows.paths is None else [rows.paths[i] for i in indexes],
    )
