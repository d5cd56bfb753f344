"""distinct: how many different values there are, exactly, or estimated in 4 kB (HyperLogLog)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

from geartrain.aggregates.hyperloglog import Registers, estimate
from geartrain.aggregates.mergeable import SCALARS, Accept, AggregateSpec, BuiltIn
from geartrain.aggregates.values import identity
from geartrain.batch import Origin


class Distinct(BuiltIn[Any, Any, int]):
    """Keeps every value that it has seen."""

    accumulator: ClassVar[Any] = set[bytes]
    empty: ClassVar[Any] = 0
    kinds: ClassVar[tuple[type, ...]] = SCALARS

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
        return acc

    def merge(self, left: Any, right: Any) -> Any:
        """Both sets."""
        return left | right

    def result(self, acc: Any) -> int:
        """How many."""
        return len(acc)


class DistinctEstimate(Distinct):
    """Keeps HyperLogLog registers."""

    accumulator: ClassVar[Any] = Registers

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


def distinct(of: str | Callable[[Any], Any] | None = None, *, exact: bool = True) -> AggregateSpec:
    """How many different values there are; None is no value, -0.0 is 0.0 and NaN is one value.

    exact: keeps all values in the key's state, which is for thousands of them, not millions; else HyperLogLog
    with 4,096 registers estimates the number with a standard error of 1.6 %, the same under any cut.

    >>> symbols = distinct("symbol")
    >>> symbols.mergeable.result({b"sGT", b"sHAL"})
    2
    """
    return (Distinct() if exact else DistinctEstimate()).of(of)
