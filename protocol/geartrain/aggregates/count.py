"""count: how many records there are, or how many have a value."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any, ClassVar

from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.records.batch import Origin


class Count(BuiltIn[Any, int, int]):
    """How many."""

    accumulator: ClassVar[Any] = int
    empty: ClassVar[Any] = 0

    def accept(self, kind: Any) -> Accept | None:
        """Anything can be counted."""
        return None

    def create(self) -> int:
        """None yet."""
        return 0

    def add_all(
        self, acc: int, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> int:
        """As many more."""
        return acc + len(values)

    def add_groups(
        self, accs: Sequence[int], column: Sequence[Any], groups: Sequence[list[int]]
    ) -> Sequence[int]:
        """As many more of each."""
        return list(map(add, accs, map(len, groups)))

    def merge(self, left: int, right: int) -> int:
        """Both."""
        return left + right

    def result(self, acc: int) -> int:
        """The count."""
        return acc


class CountAll(Count):
    """How many records, whatever they hold."""

    name: ClassVar[str] = "agg.count"
    skips_none: ClassVar[bool] = False
