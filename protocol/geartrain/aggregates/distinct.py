"""distinct: how many different values there are, exactly, or estimated in 4 kB (HyperLogLog)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from geartrain.aggregates.hyperloglog import Registers, estimate
from geartrain.aggregates.mergeable import SCALARS, Accept, BuiltIn
from geartrain.aggregates.values import identity
from geartrain.errors import FlowError, SchemaError
from geartrain.records.batch import Origin

LIMIT = 100_000
"""Values that an exact count keeps, unless it is told otherwise."""

_MORE = {b""}
"""What is left of more values than the limit: no value has this identity."""


class CountDistinct(BuiltIn[Any, Any, int]):
    """Keeps every value that it has seen, up to a limit; of more, only that they were more."""

    accumulator: ClassVar[Any] = set[bytes]
    empty: ClassVar[Any] = 0
    kinds: ClassVar[tuple[type, ...]] = SCALARS

    def __init__(self, limit: int = LIMIT) -> None:
        """Raises `FlowError` for a limit that is none."""
        if type(limit) is not int or limit < 1:
            raise FlowError(f"agg.count_distinct with limit={limit!r}: it must be a whole number from 1 on")
        self.limit = limit

    def accept(self, kind: Any) -> Accept | None:
        """What can be told apart."""
        if not (isinstance(kind, type) and issubclass(kind, Enum)):
            super().accept(kind)
        return identity

    def create(self) -> Any:
        """Nothing yet."""
        return set()

    def add_all(
        self, acc: Any, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Any:
        """With all values, as their identities."""
        acc.update(values)
        return self._bounded(acc)

    def merge(self, left: Any, right: Any) -> Any:
        """Both sets."""
        return self._bounded(left | right)

    def _bounded(self, acc: Any) -> Any:
        # Whatever the order: that there were more is known as soon as any part of them has more.
        return set(_MORE) if len(acc) > self.limit or not _MORE.isdisjoint(acc) else acc

    def result(self, acc: Any) -> int:
        """How many; raises `SchemaError` for more than the limit."""
        if not _MORE.isdisjoint(acc):
            raise SchemaError(
                f"there are more than {self.limit:,} different values: give agg.count_distinct a higher "
                "limit, or exact=False"
            )
        return len(acc)


class CountDistinctEstimate(CountDistinct):
    """Keeps HyperLogLog registers."""

    name: ClassVar[str] = "agg.count_distinct"
    accumulator: ClassVar[Any] = Registers

    def __init__(self) -> None:
        """Its size has a bound of its own."""

    def create(self) -> Any:
        """Nothing yet."""
        return Registers()

    def add_all(
        self, acc: Any, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Any:
        """With all values, as their identities."""
        acc.add_all(values)
        return acc

    def merge(self, left: Any, right: Any) -> Any:
        """The greater of both registers."""
        left.merge(right)
        return left

    def result(self, acc: Any) -> int:
        """The estimate."""
        return round(estimate(acc.ranks()))
