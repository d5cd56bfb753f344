"""The numbers of a column: ints as they are or as steps, floats as doubles or as decimals of few digits.

Part of `geartrain.wire.columns`. Guarantees: what comes back equals what went in bit for bit; the smaller
form is found by looking at a few values before all of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from itertools import accumulate, islice, repeat
from operator import floordiv, mul, sub, truediv
from typing import TYPE_CHECKING, Any, TypeVar

from geartrain.errors import WireError
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.parsing import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedScalarFieldContainer

_T = TypeVar("_T", bool, int, float, str, bytes)

_DIGITS_MAX = 9
_DIGITS_SAMPLE = 8
_STEPS_SAMPLE = 32
_WHOLE_MAX = 2**48
"""As a varint a larger number takes as much as a double."""


def packed_values(packed: RepeatedScalarFieldContainer[_T], rows: int) -> list[_T]:
    """The values as a list, which is larger than the packed ones: so they are counted first."""
    if len(packed) != rows:
        raise WireError(f"a column has {len(packed)} values for {rows} rows")
    return packed[:]


def is_constant(values: list[Any]) -> bool:
    """Whether all values are equal."""
    return bool(values[0] == values[-1]) and values.count(values[0]) == len(values)


# --- ints ---


def encode_ints(column: pb.Column, values: list[int]) -> None:
    """Write ints of 64 bits in their smallest form; raises `ValueError` for others."""
    if is_constant(values):
        column.encoding = pb.Column.CONSTANT
        column.ints.append(values[0])
    elif _steps_are_smaller(values) and _fits(values):
        column.encoding = pb.Column.DELTA
        _write_deltas(column, values)
    else:
        column.ints.extend(values)


def _steps_are_smaller(values: list[int]) -> bool:
    """Whether deltas take less than the values, by a sample: worth the work from a fifth on."""
    rows = range(0, len(values) - 1, len(values) // _STEPS_SAMPLE + 1)
    steps = sum([(values[row + 1] - values[row]).bit_length() // 7 + 1 for row in rows])
    return steps < 0.8 * sum([values[row].bit_length() // 7 + 1 for row in rows])


def _fits(values: list[int]) -> bool:
    """Whether all are of 64 bits, and all deltas too."""
    low, high = min(values), max(values)
    return low >= INT64_MIN and high <= INT64_MAX and high - low <= INT64_MAX


def _write_deltas(column: pb.Column, values: list[int]) -> None:
    deltas = list(map(sub, islice(values, 1, None), values))
    unit = math.gcd(*deltas)
    column.base, column.unit = values[0], unit
    column.ints.extend(map(floordiv, deltas, repeat(unit)) if unit > 1 else deltas)


def decode_delta(column: pb.Column, rows: int) -> list[int]:
    """Ints that were written as steps; raises `WireError` where they leave 64 bits."""
    deltas = packed_values(column.ints, rows - 1)
    steps: Iterable[int] = map(mul, deltas, repeat(column.unit)) if column.unit != 1 else deltas
    values = list(accumulate(steps, initial=column.base))
    if min(values) < INT64_MIN or max(values) > INT64_MAX:
        raise WireError("a column of deltas leaves 64 bits")
    return values


# --- floats ---


def encode_floats(column: pb.Column, values: list[float]) -> None:
    """Write floats in their smallest form."""
    if is_constant(values) and _same_bits(values, values[:1] * len(values)):
        column.encoding = pb.Column.CONSTANT
        column.doubles.append(values[0])
        return
    digits = _decimal_digits(values[:: len(values) // _DIGITS_SAMPLE + 1])
    whole = None if digits is None else _whole(values, 10.0**digits)
    if digits is None or whole is None:
        column.doubles.extend(values)
        return
    column.digits = digits
    if _steps_are_smaller(whole):
        column.encoding = pb.Column.DECIMAL_DELTA
        _write_deltas(column, whole)
    else:
        column.encoding = pb.Column.DECIMAL
        column.ints.extend(whole)


def _same_bits(values: list[float], others: list[float]) -> bool:
    """-0.0 equals 0.0, and NaN nothing, but their bits tell."""
    return array("d", values).tobytes() == array("d", others).tobytes()


def _decimal_digits(sample: list[float]) -> int | None:
    """How many decimal digits make every value of the sample from a small whole number; None if none do."""
    if not all(map(math.isfinite, sample)):
        return None
    largest = max(map(abs, sample))
    for digits in range(_DIGITS_MAX + 1):
        scale = 10.0**digits
        if largest * scale > _WHOLE_MAX:
            return None
        if all(round(value * scale) / scale == value for value in sample):
            return digits
    return None


def _whole(values: list[float], scale: float) -> list[int] | None:
    """The values as whole numbers of 1 / `scale`, if these are small and bring back every bit; else None."""
    try:
        whole = list(map(float.__round__, map(mul, values, repeat(scale))))
    except (OverflowError, ValueError):  # infinities and NaN
        return None
    if list(map(truediv, whole, repeat(scale))) != values:
        return None
    low, high = min(whole), max(whole)
    if low < -_WHOLE_MAX or high > _WHOLE_MAX:
        return None
    if low <= 0 <= high and any(math.copysign(1.0, value) < 0 for value in values if value == 0):
        return None
    return whole


def decode_decimal(column: pb.Column, whole: list[int]) -> list[float]:
    """Floats that were written as whole numbers of their last digit; raises `WireError` for many digits."""
    if column.digits > _DIGITS_MAX:
        raise WireError(f"a column has {column.digits} decimal digits; {_DIGITS_MAX} are the most")
    return list(map(truediv, whole, repeat(10.0**column.digits)))
