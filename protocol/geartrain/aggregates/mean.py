"""mean: the exact sum over the count, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from geartrain.aggregates.exact import ExactSum, add_groups, number, rounded
from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.aggregates.total import NUMBERS
from geartrain.records.batch import Origin


class Summed(msgspec.Struct, array_like=True):
    """How many values, and their exact sum."""

    count: int
    sum: ExactSum


class Mean(BuiltIn[Any, Summed, float]):
    """The mean."""

    name: ClassVar[str] = "agg.mean"
    accumulator: ClassVar[Any] = Summed
    kinds: ClassVar[tuple[type, ...]] = NUMBERS

    def accept(self, kind: Any) -> Accept | None:
        """Numbers."""
        return number if super().accept(kind) is not None or kind is Decimal else None

    def create(self) -> Summed:
        """Nothing yet."""
        return Summed(0, ExactSum())

    def add_all(
        self, acc: Summed, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Summed:
        """With all values."""
        acc.count += len(values)
        acc.sum.add_all(values)
        return acc

    def add_groups(
        self, accs: Sequence[Summed], column: Sequence[Any], groups: Sequence[list[int]]
    ) -> Sequence[Summed]:
        """With the values of each group."""
        for acc, rows in zip(accs, groups, strict=True):
            acc.count += len(rows)
        add_groups([acc.sum for acc in accs], column, groups)
        return accs

    def merge(self, left: Summed, right: Summed) -> Summed:
        """Both."""
        left.count += right.count
        left.sum.merge(right.sum)
        return left

    def compact(self, acc: Summed) -> Summed:
        """Few floats."""
        acc.sum.compact()
        return acc

    def result(self, acc: Summed) -> float:
        """The float nearest to the exact mean."""
        if (single := acc.sum.single()) is not None:
            return single / acc.count + 0.0  # as exact as the ratio: rounded once
        special = acc.sum.special()
        if special is not None:
            return special
        numerator, denominator = acc.sum.ratio()
        return rounded(numerator, denominator * acc.count)
