"""The order of values for min, max and top_n; and the first two.

Guarantees a total order of all values that they take, so that equal sets of values have one least element.
NaN (only top_n meets it) is below all, -0.0 below 0.0. Equal numbers go by type (bool, int, float, Decimal).
Where types have no order, the order is numbers, text, bytes, times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.aggregates.exact import number
from geartrain.aggregates.mergeable import SCALARS, Accept, BuiltIn
from geartrain.records.event_time import from_datetime, to_datetime

V = TypeVar("V")

_GROUP: dict[type, tuple[int, int]] = {
    bool: (1, 0),
    int: (1, 1),
    float: (1, 2),
    Decimal: (1, 3),
    str: (2, 0),
    bytes: (3, 0),
    datetime: (4, 0),
}


def rank(value: Any) -> tuple[Any, ...]:
    """What sorts values."""
    kind = type(value)
    if kind is float:
        if value != value:
            return (0,)
        return 1, value, math.copysign(1.0, value) if value == 0.0 else 0.0, 2
    group, place = _GROUP[kind]
    if kind is Decimal:  # equal ones may differ in their last zeros, and in the sign of zero
        sign = 0.0 if value else -1.0 if value.is_signed() else 1.0
        return group, value, sign, place, -value.as_tuple().exponent
    return (group, value, 0.0 if value else 1.0, place) if group == 1 else (group, value)


def comparable(value: Any) -> Any:
    """`value` in normal form when its type has an order; raises `SchemaError` otherwise."""
    if type(value) is datetime:
        return to_datetime(from_datetime(value))
    return value if type(value) in (str, bytes) else number(value)


class Extreme(msgspec.Struct, Generic[V], array_like=True):
    """The least or greatest value so far, None before the first; nan: a NaN was seen."""

    value: V | None = None
    nan: bool = False


@lru_cache(maxsize=256)
def extreme_type(kind: Any) -> Any:
    """The accumulator for values of the type `kind`, None where it is not known."""
    return Extreme[Any if kind is None else kind]  # type: ignore[misc]


class Ranked(BuiltIn[Any, Any, Any]):
    """Base of minimum and maximum: which of some values is kept is what differs."""

    kinds: ClassVar[tuple[type, ...]] = SCALARS

    def choose(self, values: Sequence[Any]) -> Any:
        """The one to keep, by `rank`; `values` holds no NaN."""
        raise TypeError(f"{type(self).__name__} must define choose(values)")

    def result_of(self, kind: Any) -> Any:
        """The type of the values."""
        return kind

    def accumulator_of(self, kind: Any) -> Any:
        """Holds a value of the type `kind`."""
        return extreme_type(kind)

    def accept(self, kind: Any) -> Accept | None:
        """What has an order."""
        return comparable if super().accept(kind) is not None or kind is Decimal else None

    def create(self) -> Any:
        """Nothing yet."""
        return Extreme()

    def add_all(self, acc: Any, values: Sequence[Any], times: Sequence[int], origins: Sequence[Any]) -> Any:
        """With all values."""
        kept = [v for v in values if v == v]
        acc.nan = acc.nan or len(kept) < len(values)
        if kept:
            best = self.choose(kept)
            acc.value = best if acc.value is None else self.choose([acc.value, best])
        return acc

    def merge(self, left: Any, right: Any) -> Any:
        """Both."""
        left.nan = left.nan or right.nan
        if right.value is not None:
            left.value = right.value if left.value is None else self.choose([left.value, right.value])
        return left

    def result(self, acc: Any) -> Any:
        """The value, NaN when there was nothing else."""
        return math.nan if acc.value is None else acc.value


class Min(Ranked):
    """The least."""

    name: ClassVar[str] = "agg.min"

    def choose(self, values: Sequence[Any]) -> Any:
        """The least; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := min(values)):
            return best
        return min(values, key=rank)


class Max(Ranked):
    """The greatest."""

    name: ClassVar[str] = "agg.max"

    def choose(self, values: Sequence[Any]) -> Any:
        """The greatest; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := max(values)):
            return best
        return max(values, key=rank)
