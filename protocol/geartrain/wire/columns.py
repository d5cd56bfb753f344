"""One column of rows as bytes and back: the encodings, and the choice of the smallest.

Part of a batch's body, between `geartrain.wire.body` and protobuf. Guarantees: what comes back equals what
went in bit for bit (NaN payloads, -0.0, both ends of int64); bytes that are no such column raise `WireError`.
The work is done by list operations and packed fields, not value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import compress, count, repeat
from operator import is_not, not_
from typing import Any

from geartrain.errors import WireError
from geartrain.schema.fields import FieldType
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.numbers import (
    decode_decimal,
    decode_delta,
    encode_floats,
    encode_ints,
    is_constant,
    packed_values,
)
from geartrain.wire.parsing import parse

_TEXTS = (FieldType.STR, FieldType.BYTES)
_COLUMN_BYTES = 128
"""What a column takes beside its values, amply."""

_BYTE_INDEXES_MAX = 256
_FEW_ROWS, _SHORT_BYTES = 4, 64


def encode_column(kind: FieldType, optional: bool, values: list[Any], limits: Limits) -> bytes:
    """A column as bytes, in its smallest encoding; raises `WireError` for a value that is not of its type."""
    column = pb.Column(encoding=pb.Column.PLAIN)
    rows = len(values)
    if optional and None in values:
        present = list(map(is_not, values, repeat(None)))
        column.nulls = pack_bits(list(map(not_, present)))
        values = list(compress(values, present))
    try:
        if values:
            _ENCODERS[kind](column, values)
        encoded: bytes = column.SerializeToString()
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a value is not of type {kind.value}: {error}") from None
    check_texts(column, len(encoded), rows, limits)
    return encoded


def decode_column(kind: FieldType, optional: bool, data: bytes, rows: int, limits: Limits) -> list[Any]:
    """The `rows` values of a column, None where it is null; raises `WireError` for any other bytes."""
    if rows <= _FEW_ROWS and kind in _TEXTS and len(data) <= _SHORT_BYTES and limits is LIMITS:
        return list(_decode_short(kind is FieldType.STR, optional, data, rows))
    return _decode(kind, optional, data, rows, limits)


@lru_cache(maxsize=16_384)
def _decode_short(is_str: bool, optional: bool, data: bytes, rows: int) -> tuple[Any, ...]:
    """The values of a short column of texts: names and symbols that come again with every batch."""
    return tuple(_decode(FieldType.STR if is_str else FieldType.BYTES, optional, data, rows, LIMITS))


def _decode(kind: FieldType, optional: bool, data: bytes, rows: int, limits: Limits) -> list[Any]:
    # Texts have a cap of their own; all else takes at most ten bytes a value.
    bytes_max = limits.body_bytes_max if kind in _TEXTS else 12 * rows + _COLUMN_BYTES
    try:
        column = parse(pb.Column, data, "a column", bytes_max)
    except WireError as error:
        raise WireError(f"{kind.value}, {rows} rows: {error}") from None
    check_texts(column, len(data), rows, limits)
    if not column.nulls:
        return _decode_present(kind, column, rows)
    if not optional:
        raise WireError("a column has nulls, but its field is not optional")
    nulls = unpack_bits(column.nulls, rows)
    values = iter(_decode_present(kind, column, rows - sum(nulls)))
    return [None if null else next(values) for null in nulls]


def _decode_present(kind: FieldType, column: pb.Column, rows: int) -> list[Any]:
    if column.encoding == pb.Column.PLAIN:
        return _PLAIN[kind](column, rows)
    if rows < 1:
        raise WireError("a column without values is not plain")
    if column.encoding == pb.Column.CONSTANT:
        return _PLAIN[kind](column, 1) * rows
    decoder = _DECODERS.get((kind, column.encoding))
    if decoder is None:
        raise WireError(f"encoding {column.encoding} is not one of {kind.value} columns")
    return decoder(column, rows)


# --- bools ---


def pack_bits(flags: list[bool]) -> bytes:
    """A bit a flag, lowest bit of the first byte first; the last byte is filled with zeros."""
    digits = bytes(flags)[::-1].translate(_TO_DIGITS)
    return int(digits, 2).to_bytes((len(flags) + 7) // 8, "little") if flags else b""


def unpack_bits(bits: bytes, rows: int) -> list[bool]:
    """The reverse of `pack_bits`; raises `WireError` for another number of bytes, or ones in the filling."""
    if len(bits) != (rows + 7) // 8:
        raise WireError(f"a bitmap has {len(bits)} bytes for {rows} rows")
    number = int.from_bytes(bits, "little")
    if number >> rows:
        raise WireError("a bitmap has bits beyond its rows")
    return list(map("1".__eq__, reversed(f"{number:0{rows}b}"))) if rows else []


_TO_DIGITS = bytes.maketrans(b"\0\1", b"01")


def _encode_bools(column: pb.Column, values: list[bool]) -> None:
    constant = is_constant(values)
    column.encoding = pb.Column.CONSTANT if constant else pb.Column.PLAIN
    column.bits = pack_bits(values[:1] if constant else values)


# --- texts and blobs ---


def _encode_texts(column: pb.Column, values: list[str]) -> None:
    column.encoding, written = _index(column, values)
    column.texts.extend(written)


def _encode_blobs(column: pb.Column, values: list[bytes]) -> None:
    column.encoding, written = _index(column, values)
    column.blobs.extend(written)


def _index(column: pb.Column, values: list[Any]) -> tuple[pb.Column.Encoding.ValueType, list[Any]]:
    """(encoding, values to write): each value once, and an index a row in `column`, where that is smaller."""
    if is_constant(values):
        return pb.Column.CONSTANT, values[:1]
    unique = dict.fromkeys(values)
    if len(unique) == len(values):
        return pb.Column.PLAIN, values
    rows, few = len(values), len(unique) <= _BYTE_INDEXES_MAX
    # A text costs its length and two bytes; that a long one costs a little more hardly moves the choice.
    if (2 * len(unique) > rows or not few) and (
        sum(map(len, unique)) + 2 * len(unique) + (1 if few else 2) * rows >= sum(map(len, values)) + 2 * rows
    ):
        return pb.Column.PLAIN, values
    numbers = dict(zip(unique, count(), strict=False))
    indexes = map(numbers.__getitem__, values)
    if few:
        column.byte_indexes = bytes(indexes)
    else:
        column.indexes.extend(indexes)
    return pb.Column.DICTIONARY, list(unique)


def _decode_dictionary(values: list[Any], column: pb.Column, rows: int) -> list[Any]:
    indexes = column.byte_indexes or packed_values(column.indexes, rows)
    if len(indexes) != rows:
        raise WireError(f"a column has {len(indexes)} indexes for {rows} rows")
    try:
        return list(map(values.__getitem__, indexes))
    except IndexError:
        raise WireError(f"a column has an index beyond its dictionary of {len(values)} values") from None


def check_texts(column: pb.Column, column_bytes: int, rows: int, limits: Limits) -> None:
    """Raise `WireError` when one text is too long, or all that the column means together.

    A dictionary holds a value once but means it in many rows, which would let few bytes grow without bound.
    """
    written = max(len(column.texts) + len(column.blobs), len(column.indexes), len(column.byte_indexes))
    if written > rows:
        raise WireError(f"a column has {written} texts or indexes for {rows} rows")
    repeated = column.encoding != pb.Column.PLAIN
    if column_bytes <= limits.text_bytes_max and not (
        repeated and column_bytes * rows > limits.body_bytes_max
    ):
        return
    sizes = [len(text.encode()) for text in column.texts] + list(map(len, column.blobs))
    if sizes and max(sizes) > limits.text_bytes_max:
        raise WireError(f"a text has {max(sizes)} bytes; {limits.text_bytes_max} are the most")
    if column.encoding == pb.Column.DICTIONARY:
        indexes = column.byte_indexes or column.indexes
        total = sum([sizes[index] for index in indexes if index < len(sizes)])
    else:
        total = sum(sizes) * (rows if repeated else 1)
    if total > limits.body_bytes_max:
        raise WireError(f"a column's texts have {total} bytes; {limits.body_bytes_max} are the most")


_ENCODERS: dict[FieldType, Callable[[pb.Column, list[Any]], None]] = {
    FieldType.BOOL: _encode_bools,
    FieldType.INT64: encode_ints,
    FieldType.FLOAT64: encode_floats,
    FieldType.STR: _encode_texts,
    FieldType.BYTES: _encode_blobs,
    FieldType.DATETIME: encode_ints,
}
_PLAIN: dict[FieldType, Callable[[pb.Column, int], list[Any]]] = {
    FieldType.BOOL: lambda column, rows: unpack_bits(column.bits, rows),
    FieldType.INT64: lambda column, rows: packed_values(column.ints, rows),
    FieldType.FLOAT64: lambda column, rows: packed_values(column.doubles, rows),
    FieldType.STR: lambda column, rows: packed_values(column.texts, rows),
    FieldType.BYTES: lambda column, rows: packed_values(column.blobs, rows),
    FieldType.DATETIME: lambda column, rows: packed_values(column.ints, rows),
}
_DECODERS: dict[tuple[FieldType, int], Callable[[pb.Column, int], list[Any]]] = {
    (FieldType.INT64, pb.Column.DELTA): decode_delta,
    (FieldType.DATETIME, pb.Column.DELTA): decode_delta,
    (FieldType.FLOAT64, pb.Column.DECIMAL): lambda c, rows: decode_decimal(c, packed_values(c.ints, rows)),
    (FieldType.FLOAT64, pb.Column.DECIMAL_DELTA): lambda c, rows: decode_decimal(c, decode_delta(c, rows)),
    (FieldType.STR, pb.Column.DICTIONARY): lambda c, rows: _decode_dictionary(c.texts[:], c, rows),
    (FieldType.BYTES, pb.Column.DICTIONARY): lambda c, rows: _decode_dictionary(c.blobs[:], c, rows),
}
