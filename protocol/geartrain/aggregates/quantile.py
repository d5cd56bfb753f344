"""quantile: by counting values in buckets whose width is a fixed fraction of their values (DDSketch).

Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees" (VLDB
2019), with the linearly interpolated mapping: each power of two is cut into equal buckets. That takes no
logarithm, so every machine finds the same bucket, and merging adds counts, so order cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from geartrain.aggregates.exact import number
from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.aggregates.total import NUMBERS
from geartrain.errors import FlowError
from geartrain.records.batch import Origin

ERROR_MIN = 0.0001


class Sketch(msgspec.Struct, array_like=True):
    """Counts of values by bucket: of the positive and the negative ones, of zeros, infinities and NaN."""

    above: dict[int, int] = {}
    below: dict[int, int] = {}
    zeros: int = 0
    plus: int = 0
    minus: int = 0
    nan: bool = False

    def merge(self, other: Sketch) -> None:
        """Add what others hold."""
        for mine, others in ((self.above, other.above), (self.below, other.below)):
            for bucket, count in others.items():
                mine[bucket] = mine.get(bucket, 0) + count
        self.zeros += other.zeros
        self.plus += other.plus
        self.minus += other.minus
        self.nan = self.nan or other.nan


class Quantile(BuiltIn[Any, Sketch, float]):
    """The quantile `q` with a relative error of at most `error`."""

    name: ClassVar[str] = "agg.quantile"
    accumulator: ClassVar[Any] = Sketch
    kinds: ClassVar[tuple[type, ...]] = NUMBERS

    def __init__(self, q: float, error: float) -> None:
        if not 0 <= q <= 1:
            raise FlowError(f"quantile: q={q!r} must be 0 to 1")
        if not ERROR_MIN <= error < 0.5:
            raise FlowError(f"quantile: error={error!r} must be {ERROR_MIN} to 0.5")
        self.q, self.error = float(q), error
        self._parts = 1
        while 1 / (2 * self._parts + 1) > error:
            self._parts *= 2

    def accept(self, kind: Any) -> Accept | None:
        """Numbers."""
        return number if super().accept(kind) is not None or kind is Decimal else None

    def create(self) -> Sketch:
        """Nothing yet."""
        return Sketch()

    def add_all(
        self, acc: Sketch, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Sketch:
        """With all values."""
        parts, frexp = self._parts, math.frexp
        for value in map(float, values):
            if value - value != 0.0:
                self._add_odd(acc, value)
            elif value == 0.0:
                acc.zeros += 1
            else:
                fraction, exponent = frexp(abs(value))
                bucket = exponent * parts + int((2.0 * fraction - 1.0) * parts)
                side = acc.above if value > 0 else acc.below
                side[bucket] = side.get(bucket, 0) + 1
        return acc

    def merge(self, left: Sketch, right: Sketch) -> Sketch:
        """Both."""
        left.merge(right)
        return left

    def result(self, acc: Sketch) -> float:
        """The value of the bucket that holds the one of rank floor(q * (n - 1))."""
        buckets = [(-math.inf, acc.minus)]
        buckets += [(-self._middle(b), acc.below[b]) for b in sorted(acc.below, reverse=True)]
        buckets.append((0.0, acc.zeros))
        buckets += [(self._middle(b), acc.above[b]) for b in sorted(acc.above)]
        buckets.append((math.inf, acc.plus))
        rank = int(self.q * (sum(count for _, count in buckets) - 1))
        for value, count in buckets:
            if rank < count:
                return value
            rank -= count
        return math.nan

    def _middle(self, bucket: int) -> float:
        """The value whose relative distance to both ends of a bucket is the same."""
        exponent, part = divmod(bucket, self._parts)
        low, high = 1.0 + part / self._parts, 1.0 + (part + 1) / self._parts
        return math.ldexp(2.0 * low * high / (low + high), exponent - 1)

    @staticmethod
    def _add_odd(acc: Sketch, value: float) -> None:
        if value != value:
            acc.nan = True
        elif value > 0:
            acc.plus += 1
        else:
            acc.minus += 1
