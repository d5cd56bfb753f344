"""variance: from the exact sums of values and squares, rounded once, so that nothing cancels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from geartrain.aggregates.exact import DIGITS_MAX, ExactSum, number, packed, rounded, tens_of, unpacked
from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.aggregates.total import NUMBERS
from geartrain.errors import FlowError
from geartrain.records.batch import Origin

_PENDING_MAX = 64
_UNIT = 100**DIGITS_MAX


class Moments(msgspec.Struct, array_like=True):
    """How many values, their exact sum, and the exact sum of their squares.

    pending: floats whose squares are not added yet; squares, bits: those of floats and ints in units of
    2**-bits; tens: those of Decimals in units of 10**-36; both as signed bytes.
    """

    count: int
    sum: ExactSum
    pending: list[float] = []
    squares: bytes = b""
    bits: int = 0
    tens: bytes = b""

    def add_all(self, values: Sequence[Any]) -> None:
        """Add numbers that `number` has let pass."""
        self.count += len(values)
        self.sum.add_all(values)
        whole = tens = 0
        for value in values:
            if type(value) is float:
                self.pending.append(value)
            elif type(value) is Decimal:
                tens += tens_of(value) ** 2
            else:
                whole += value * value
        if whole:
            self._add(whole, 0)
        if tens:
            self.tens = packed(unpacked(self.tens) + tens)
        if len(self.pending) > _PENDING_MAX:
            self._settle()

    def merge(self, other: Moments) -> None:
        """Add what others hold."""
        self.count += other.count
        self.sum.merge(other.sum)
        self.pending += other.pending
        self._add(unpacked(other.squares), other.bits)
        self.tens = packed(unpacked(self.tens) + unpacked(other.tens))
        if len(self.pending) > _PENDING_MAX:
            self._settle()

    def compact(self) -> None:
        """Take the smallest form."""
        self._settle()
        self.sum.compact()

    def ratio(self) -> tuple[int, int]:
        """The sum of squares as numerator and denominator; all values are finite."""
        self._settle()
        squares = unpacked(self.squares)
        if not self.tens:
            return squares, 1 << self.bits
        return squares * _UNIT + (unpacked(self.tens) << self.bits), _UNIT << self.bits

    def _settle(self) -> None:
        total = most = 0
        for value in self.pending:
            if not math.isfinite(value):
                continue  # marked in the sum
            top, bottom = value.as_integer_ratio()
            bits = 2 * (bottom.bit_length() - 1)
            if bits > most:
                total, most = total << (bits - most), bits
            total += top * top << (most - bits)
        self.pending = []
        self._add(total, most)

    def _add(self, squares: int, bits: int) -> None:
        old = unpacked(self.squares)
        most = max(bits, self.bits)
        total = (old << (most - self.bits)) + (squares << (most - bits))
        self.squares, self.bits = packed(total), most


class Variance(BuiltIn[Any, Moments, float]):
    """The variance with `ddof` degrees of freedom taken off."""

    name: ClassVar[str] = "agg.variance"
    accumulator: ClassVar[Any] = Moments
    kinds: ClassVar[tuple[type, ...]] = NUMBERS

    def __init__(self, ddof: int = 0) -> None:
        if ddof not in (0, 1):
            raise FlowError(f"variance: ddof={ddof!r} must be 0 (of all there is) or 1 (of a sample)")
        self.ddof = ddof

    def accept(self, kind: Any) -> Accept | None:
        """Numbers."""
        return number if super().accept(kind) is not None or kind is Decimal else None

    def create(self) -> Moments:
        """Nothing yet."""
        return Moments(0, ExactSum())

    def add_all(
        self, acc: Moments, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Moments:
        """With all values."""
        acc.add_all(values)
        return acc

    def merge(self, left: Moments, right: Moments) -> Moments:
        """Both."""
        left.merge(right)
        return left

    def compact(self, acc: Moments) -> Moments:
        """Few floats, and the squares of none."""
        acc.compact()
        return acc

    def result(self, acc: Moments) -> float:
        """The float nearest to the exact variance."""
        count, free = acc.count, acc.count - self.ddof
        if acc.sum.special() is not None or free <= 0:
            return math.nan
        sum_top, sum_bottom = acc.sum.ratio()
        top, bottom = acc.ratio()
        whole = sum_bottom * sum_bottom
        return rounded(count * top * whole - sum_top * sum_top * bottom, bottom * whole * count * free)
