"""Exact sums of floats, ints and Decimals, rounded once when they are read: neither order nor cut can show.

Used by total, mean and variance. Floats are kept as a list, compressed at a bound to its exact expansion: s1
= fsum(v), s2 = fsum(v - s1), and so on until nothing is left. `math.fsum` is exact (Shewchuk, "Adaptive
Precision Floating-Point Arithmetic", 1997). Floats of 2**960 and more are kept scaled by 2**-128, so that no
sum of fewer than 2**60 of them overflows on its way. Ints and Decimals are kept as integers. Infinities and
NaN are only marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from geartrain.errors import SchemaError

ITEMS_MAX = 128
"""Floats that are kept before they are compressed."""
_ITEMS_READ = 8
FLOAT, DECIMAL, NAN, PLUS, MINUS = 1, 2, 4, 8, 16
"""What a sum has seen."""
DIGITS_MAX = 18
"""Digits behind the point of a Decimal."""
_LARGE = 2.0**960
_SCALE = 2.0**-128
_WORD_BITS = 62
_UNIT = 10**DIGITS_MAX


class ExactSum(msgspec.Struct, array_like=True):
    """Numbers added up, exactly.

    seen: the marks above; floats: finite ones below 2**960; large: the others, times 2**-128; low, high: the
    ints, high in units of 2**62; tens: the Decimals in units of 10**-18, as signed bytes; digits: the largest
    number of digits behind their points.
    """

    seen: int = 0
    floats: list[float] = []
    large: list[float] = []
    low: int = 0
    high: int = 0
    tens: bytes = b""
    digits: int = 0

    def add_all(self, values: Sequence[Any]) -> None:
        """Add numbers that `number` has let pass."""
        kinds = set(map(type, values))
        if kinds == {float}:
            self.add_floats(values)
        elif kinds <= {int, bool}:
            self._add_int(sum(values))
        else:
            self.add_floats([v for v in values if type(v) is float])
            self._add_int(sum(v for v in values if type(v) is int or type(v) is bool))
            self._add_decimals([v for v in values if type(v) is Decimal])

    def add_floats(self, values: Sequence[float]) -> None:
        """Add floats."""
        if not values:
            return
        self.seen |= FLOAT
        small = [v for v in values if -_LARGE < v < _LARGE]
        self.floats += small
        if len(small) < len(values):
            for value in values:
                if not -_LARGE < value < _LARGE:
                    self._add_odd(value)
        self._compress()

    def merge(self, other: ExactSum) -> None:
        """Add what another sum holds."""
        self.seen |= other.seen
        self.floats += other.floats
        self.large += other.large
        self._add_int(other.low)
        self.high += other.high
        self.tens = packed(unpacked(self.tens) + unpacked(other.tens))
        self.digits = max(self.digits, other.digits)
        self._compress()

    def compact(self) -> None:
        """Take the smallest form: an expansion of the floats, of mostly one to three."""
        if len(self.floats) > 1:
            self.floats = _expansion(self.floats)
        if len(self.large) > 1:
            self.large = _expansion(self.large)

    def special(self) -> float | None:
        """NaN or the infinity that the sum is, None where it is finite."""
        if self.seen & NAN or (self.seen & PLUS and self.seen & MINUS):
            return math.nan
        if self.seen & (PLUS | MINUS):
            return math.inf if self.seen & PLUS else -math.inf
        return None

    def result(self) -> int | float | Decimal:
        """The sum: a float when it has seen one, else a Decimal when it has, else an int."""
        if self.seen & FLOAT:
            if (special := self.special()) is not None:
                return special
            if not (self.large or self.low or self.high or self.tens):
                return math.fsum(self.floats) + 0.0
            return rounded(*self.ratio())
        if self.seen & DECIMAL:
            units = unpacked(self.tens) + self._whole() * _UNIT
            digits = tuple(map(int, str(abs(units) // 10 ** (DIGITS_MAX - self.digits))))
            return Decimal((int(units < 0), digits, -self.digits))
        return self._whole()

    def single(self) -> float | None:
        """The finite sum where it is one float, exactly; None where it takes several, or is no float."""
        if self.seen != FLOAT or self.large or self.low or self.high or self.tens:
            return None
        if len(self.floats) > 1:
            self.floats = _expansion(self.floats)
        return self.floats[0] if len(self.floats) == 1 else None

    def ratio(self) -> tuple[int, int]:
        """The finite sum as numerator and denominator, exact."""
        if len(self.floats) > _ITEMS_READ:  # who asks once for each record asks again soon
            self.floats = _expansion(self.floats)
        numerator, bits = self._whole(), 0
        for parts, scale in ((self.floats, 0), (self.large, 128)):
            for part in parts:
                top, bottom = part.as_integer_ratio()
                shift = bottom.bit_length() - 1
                if shift > bits:
                    numerator, bits = numerator << (shift - bits), shift
                numerator += top << (bits - shift + scale)
        if not self.tens:
            return numerator, 1 << bits
        return numerator * _UNIT + (unpacked(self.tens) << bits), _UNIT << bits

    def _whole(self) -> int:
        return (self.high << _WORD_BITS) + self.low

    def _add_int(self, value: int) -> None:
        total = self.low + value
        self.high += total >> _WORD_BITS
        self.low = total & ((1 << _WORD_BITS) - 1)

    def _add_decimals(self, values: Sequence[Decimal]) -> None:
        if not values:
            return
        self.seen |= DECIMAL
        self.tens = packed(unpacked(self.tens) + sum(map(tens_of, values)))
        self.digits = max(self.digits, *(-int(v.as_tuple().exponent) for v in values))

    def _add_odd(self, value: float) -> None:
        if value != value:
            self.seen |= NAN
        elif math.isinf(value):
            self.seen |= PLUS if value > 0 else MINUS
        else:
            self.large.append(value * _SCALE)

    def _compress(self) -> None:
        if len(self.floats) > ITEMS_MAX:
            self.floats = _expansion(self.floats)
        if len(self.large) > ITEMS_MAX:
            self.large = _expansion(self.large)


def add_groups(sums: Sequence[ExactSum], column: Sequence[Any], groups: Sequence[list[int]]) -> None:
    """Add to each sum the numbers of `column` at the rows of its group; `number` has let them pass."""
    value = column.__getitem__
    if set(map(type, column)) != {float} or not sum(map(abs, column)) < _LARGE:
        for total, rows in zip(sums, groups, strict=True):
            total.add_all(list(map(value, rows)))
        return
    # None is large, infinite or NaN, or the sum would be.
    for total, rows in zip(sums, groups, strict=True):
        total.seen |= FLOAT
        total.floats.extend(map(value, rows))
        if len(total.floats) > ITEMS_MAX:
            total.floats = _expansion(total.floats)


def _expansion(parts: list[float]) -> list[float]:
    """Few floats of the same exact sum."""
    rest, found = list(parts), []
    while (part := math.fsum(rest)) != 0.0:
        found.append(part)
        rest.append(-part)
    return found


def number(value: Any) -> Any:
    """`value` when it is a number that can be summed; raises `SchemaError` otherwise."""
    kind = type(value)
    if kind is float or kind is bool:
        return value
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise SchemaError("an int beyond 64 bits cannot be aggregated")
        return value
    if kind is Decimal:
        if not value.is_finite() or value.adjusted() >= 36 or value.as_tuple().exponent < -DIGITS_MAX:
            raise SchemaError(f"{value} has too many digits to be aggregated")
        return value
    raise SchemaError(f"{kind.__name__} is not a number that can be aggregated")


def tens_of(value: Decimal) -> int:
    """A Decimal in units of 10**-18."""
    sign, digits, exponent = value.as_tuple()
    units = int("".join(map(str, digits))) * int(10 ** (DIGITS_MAX + int(exponent)))
    return -units if sign else units


def rounded(numerator: int, denominator: int) -> float:
    """The float nearest to a fraction, ties to even; an infinity beyond the largest float; never -0.0."""
    try:
        return numerator / denominator + 0.0
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def packed(value: int) -> bytes:
    """An int of any size as signed big-endian bytes, none for 0."""
    return value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True) if value else b""


def unpacked(raw: bytes) -> int:
    """The int that `packed` wrote."""
    return int.from_bytes(raw, "big", signed=True)
