"""total: the exact sum, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

from geartrain.aggregates.exact import ExactSum, add_groups, number
from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.records.batch import Origin

NUMBERS: tuple[type, ...] = (bool, int, float, Decimal)


class Sum(BuiltIn[Any, ExactSum, Any]):
    """The exact sum."""

    name: ClassVar[str] = "agg.sum"
    accumulator: ClassVar[Any] = ExactSum
    kinds: ClassVar[tuple[type, ...]] = NUMBERS

    def accept(self, kind: Any) -> Accept | None:
        """Numbers."""
        return number if super().accept(kind) is not None or kind is Decimal else None

    def result_of(self, kind: Any) -> Any:
        """The type of the values; of truth values their number."""
        return int if kind is bool else kind

    def create(self) -> ExactSum:
        """Nothing yet."""
        return ExactSum()

    def add_all(
        self, acc: ExactSum, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> ExactSum:
        """With all values."""
        acc.add_all(values)
        return acc

    def add_groups(
        self, accs: Sequence[ExactSum], column: Sequence[Any], groups: Sequence[list[int]]
    ) -> Sequence[ExactSum]:
        """With the values of each group."""
        add_groups(accs, column, groups)
        return accs

    def merge(self, left: ExactSum, right: ExactSum) -> ExactSum:
        """Both sums."""
        left.merge(right)
        return left

    def compact(self, acc: ExactSum) -> ExactSum:
        """Few floats."""
        acc.compact()
        return acc

    def result(self, acc: ExactSum) -> Any:
        """The sum."""
        return acc.result()
