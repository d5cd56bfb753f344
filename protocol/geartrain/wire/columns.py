"""One column of rows as bytes and back: the encodings, and the choice of the smallest.

Part of a batch's body, between `geartrain.wire.body` and protobuf. Guarantees: what comes back equals what
went in bit for bit (NaN payloads, -0.0, both ends of int64); bytes that are no such column raise `WireError`.
The work is done by list operations and packed fields, not value by value.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, compress, count, islice, repeat
from operator import is_not, mul, sub, truediv
from typing import Any

from geartrain.errors import WireError
from geartrain.schema.fields import FieldType
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.limits import Limits
from geartrain.wire.parsing import INT64_MAX, parse

_INT64_MIN = -INT64_MAX - 1
_DIGITS_MAX = 9
_SAMPLE = 8
_EXACT_MAX = 2**53
_PLAIN, _CONSTANT = pb.Column.PLAIN, pb.Column.CONSTANT


def encode_column(kind: FieldType, values: Sequence[Any], limits: Limits) -> bytes:
    """A column as bytes, in its smallest encoding; raises `WireError` for a value that is not of its type."""
    column = pb.Column(encoding=_PLAIN)
    rows = len(values)
    if None in values:
        present = list(map(is_not, values, repeat(None)))
        column.nulls = pack_bits([not one for one in present])
        values = list(compress(values, present))
    try:
        if values:
            _ENCODERS[kind](column, values)
        encoded: bytes = column.SerializeToString()
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a value does not fit type {kind.value}: {error}") from None
    if kind in (FieldType.STR, FieldType.BYTES):
        _check_texts(column, rows, limits)
    return encoded


def decode_column(kind: FieldType, optional: bool, data: bytes, rows: int, limits: Limits) -> list[Any]:
    """The `rows` values of a column, None where it is null; raises `WireError` for any other bytes."""
    column = parse(pb.Column, data, "a column", limits.body_bytes_max)
    if not column.nulls:
        return _decode_present(kind, column, rows, limits)
    if not optional:
        raise WireError("a column has nulls, but its field is not optional")
    nulls = unpack_bits(column.nulls, rows)
    values = iter(_decode_present(kind, column, rows - sum(nulls), limits))
    return [None if null else next(values) for null in nulls]


def _decode_present(kind: FieldType, column: pb.Column, rows: int, limits: Limits) -> list[Any]:
    if kind in (FieldType.STR, FieldType.BYTES):
        _check_texts(column, rows, limits)
    if not rows:
        if column.encoding != _PLAIN:
            raise WireError("a column without values is not plain")
        return _exactly(list(_PLAIN_VALUES[kind](column, 0)), 0)
    if column.encoding == _PLAIN:
        return _exactly(_PLAIN_VALUES[kind](column, rows), rows)
    if column.encoding == _CONSTANT:
        return _exactly(_PLAIN_VALUES[kind](column, 1), 1) * rows
    decoder = _DECODERS.get((kind, column.encoding))
    if decoder is None:
        raise WireError(f"encoding {column.encoding} is not one of {kind.value} columns")
    return decoder(column, rows)


def _exactly(values: list[Any], rows: int) -> list[Any]:
    if len(values) != rows:
        raise WireError(f"a column has {len(values)} values for {rows} rows")
    return values


# --- ints ---


def _encode_ints(column: pb.Column, values: Sequence[int]) -> None:
    low, high = min(values), max(values)
    if low == high:
        column.encoding = _CONSTANT
        column.ints.append(low)
        return
    if high - low <= INT64_MAX:
        delta = _delta(pb.Column.DELTA, values)
        plain = pb.Column(ints=values)
        column.MergeFrom(delta if delta.ByteSize() < plain.ByteSize() else plain)
    else:
        column.ints.extend(values)


def _delta(encoding: pb.Column.Encoding.ValueType, values: Sequence[int]) -> pb.Column:
    deltas = list(map(sub, islice(values, 1, None), values))
    unit = math.gcd(*deltas)
    if unit > 1:
        deltas = [delta // unit for delta in deltas]
    return pb.Column(encoding=encoding, base=values[0], unit=unit, ints=deltas)


def _decode_delta(column: pb.Column, rows: int) -> list[int]:
    deltas = _exactly(list(column.ints), rows - 1)
    steps: Iterator[int] = map(mul, deltas, repeat(column.unit)) if column.unit != 1 else iter(deltas)
    values = list(accumulate(chain((column.base,), steps)))
    if min(values) < _INT64_MIN or max(values) > INT64_MAX:
        raise WireError("a column of deltas leaves 64 bits")
    return values


# --- floats ---


def _encode_floats(column: pb.Column, values: Sequence[float]) -> None:
    # Compared as bytes: -0.0 equals 0.0 and NaN equals nothing, but their bits tell.
    raw = array("d", values).tobytes()
    if raw == raw[:8] * len(values):
        column.encoding = _CONSTANT
        column.doubles.append(values[0])
        return
    decimal = _decimal(values, raw)
    if decimal is not None and decimal.ByteSize() < len(raw):
        column.MergeFrom(decimal)
    else:
        column.doubles.extend(values)


def _decimal(values: Sequence[float], raw: bytes) -> pb.Column | None:
    """The values as whole numbers of some decimal place, if that gives back every bit; else None."""
    sample = values[:_SAMPLE]
    if not all(map(math.isfinite, sample)):
        return None
    for digits in range(_DIGITS_MAX + 1):
        scale = 10.0**digits
        if all(round(value * scale) / scale == value for value in sample if abs(value) * scale < _EXACT_MAX):
            break
    else:
        return None
    try:
        whole = list(map(round, map(mul, values, repeat(scale))))
    except (OverflowError, ValueError):  # inf and NaN are no whole numbers
        return None
    if max(whole) > _EXACT_MAX or min(whole) < -_EXACT_MAX:
        return None
    if array("d", map(truediv, whole, repeat(scale))).tobytes() != raw:
        return None
    column = _delta(pb.Column.DECIMAL, whole)
    column.digits = digits
    return column


def _decode_decimal(column: pb.Column, rows: int) -> list[float]:
    if column.digits > _DIGITS_MAX:
        raise WireError(f"a column has {column.digits} decimal digits; {_DIGITS_MAX} are the most")
    return list(map(truediv, _decode_delta(column, rows), repeat(10.0**column.digits)))


# --- bools ---


def pack_bits(flags: Sequence[bool]) -> bytes:
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


def _encode_bools(column: pb.Column, values: Sequence[bool]) -> None:
    constant = len(set(values)) == 1
    column.encoding = _CONSTANT if constant else _PLAIN
    column.bits = pack_bits(values[:1] if constant else values)


# --- texts and blobs ---


def _encode_texts(column: pb.Column, values: Sequence[str]) -> None:
    column.encoding, unique, indexes = _indexed(values)
    column.texts.extend(unique)
    column.indexes.extend(indexes)


def _encode_blobs(column: pb.Column, values: Sequence[bytes]) -> None:
    column.encoding, unique, indexes = _indexed(values)
    column.blobs.extend(unique)
    column.indexes.extend(indexes)


def _indexed(values: Sequence[Any]) -> tuple[pb.Column.Encoding.ValueType, Sequence[Any], Sequence[int]]:
    """(encoding, values to write, indexes): each value once with an index a row where that is smaller."""
    unique = dict(zip(dict.fromkeys(values), count(), strict=False))
    if len(unique) == 1:
        return _CONSTANT, values[:1], ()
    # A length of one byte each is assumed; longer ones only make a dictionary better.
    plain = sum(map(len, values)) + 2 * len(values)
    written = sum(map(len, unique)) + 2 * len(unique) + len(values) * (1 if len(unique) <= 128 else 2)
    if written >= plain:
        return _PLAIN, values, ()
    return pb.Column.DICTIONARY, list(unique), list(map(unique.__getitem__, values))


def _decode_dictionary(values: Sequence[Any], column: pb.Column, rows: int) -> list[Any]:
    indexes = _exactly(list(column.indexes), rows)
    if max(indexes) >= len(values):
        raise WireError(f"a column has the index {max(indexes)} into a dictionary of {len(values)}")
    return list(map(values.__getitem__, indexes))


def _check_texts(column: pb.Column, rows: int, limits: Limits) -> None:
    """A dictionary writes a value once but means it in many rows: the caps count what it means."""
    values: list[bytes] = [text.encode() for text in column.texts] or list(column.blobs)
    sizes = list(map(len, values))
    longest = max(sizes, default=0)
    if longest > limits.text_bytes_max:
        raise WireError(f"a text has {longest} bytes; {limits.text_bytes_max} are the most")
    if longest * rows <= limits.body_bytes_max:
        return
    if column.encoding == _CONSTANT:
        total = longest * rows
    else:
        total = sum(sizes[index] for index in column.indexes if index < len(sizes)) or sum(sizes)
    if total > limits.body_bytes_max:
        raise WireError(f"the texts of a column have {total} bytes; {limits.body_bytes_max} are the most")


_ENCODERS: dict[FieldType, Callable[[pb.Column, Sequence[Any]], None]] = {
    FieldType.BOOL: _encode_bools,
    FieldType.INT64: _encode_ints,
    FieldType.FLOAT64: _encode_floats,
    FieldType.STR: _encode_texts,
    FieldType.BYTES: _encode_blobs,
    FieldType.DATETIME: _encode_ints,
}
_PLAIN_VALUES: dict[FieldType, Callable[[pb.Column, int], list[Any]]] = {
    FieldType.BOOL: lambda column, rows: unpack_bits(column.bits, rows),
    FieldType.INT64: lambda column, _: list(column.ints),
    FieldType.FLOAT64: lambda column, _: list(column.doubles),
    FieldType.STR: lambda column, _: list(column.texts),
    FieldType.BYTES: lambda column, _: list(column.blobs),
    FieldType.DATETIME: lambda column, _: list(column.ints),
}
_DECODERS: dict[tuple[FieldType, int], Callable[[pb.Column, int], list[Any]]] = {
    (FieldType.INT64, pb.Column.DELTA): _decode_delta,
    (FieldType.DATETIME, pb.Column.DELTA): _decode_delta,
    (FieldType.FLOAT64, pb.Column.DECIMAL): _decode_decimal,
    (FieldType.STR, pb.Column.DICTIONARY): lambda c, rows: _decode_dictionary(list(c.texts), c, rows),
    (FieldType.BYTES, pb.Column.DICTIONARY): lambda c, rows: _decode_dictionary(list(c.blobs), c, rows),
}
