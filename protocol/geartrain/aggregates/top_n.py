"""top_n: the largest values, or what else the records of the largest values hold."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.aggregates.mergeable import SCALARS, Accept, BuiltIn
from geartrain.aggregates.ranking import comparable, rank
from geartrain.errors import FlowError
from geartrain.records.batch import Origin

V = TypeVar("V")
G = TypeVar("G")
N_MAX = 10_000


class Ranking(msgspec.Struct, Generic[V, G], array_like=True):
    """One value, what is given for it, and the place of its record in canonical order."""

    value: V
    given: G
    time: int
    name: str
    number: int
    path: bytes

    def place(self) -> tuple[int, str, int, bytes]:
        """What canonical order sorts by."""
        return self.time, self.name, self.number, self.path


@lru_cache(maxsize=256)
def ranking_type(value: Any, given: Any) -> Any:
    """The accumulator for values and given values of these types."""
    return list[Ranking[value, given]]


class TopN(BuiltIn[Any, Any, list[Any]]):
    """The `n` largest; values come as (value, given) pairs where something else is given."""

    placed: ClassVar[bool] = True
    kinds: ClassVar[tuple[type, ...]] = SCALARS

    def __init__(self, n: int) -> None:
        if type(n) is not int or not 1 <= n <= N_MAX:
            raise FlowError(f"top_n: n={n!r} must be 1 to {N_MAX}")
        self.n = n

    def accept(self, kind: Any) -> Accept | None:
        """What has an order."""
        return comparable if super().accept(kind) is not None or kind is Decimal else None

    def accumulator_of(self, kind: Any) -> Any:
        """A list that holds values of the type `kind` only."""
        return self.list_of(kind, type(None))

    def list_of(self, kind: Any, given: Any) -> Any:
        """A list that holds values of the type `kind` and given ones of the type `given`, None where a type
        is not known.
        """
        return ranking_type(Any if kind is None else kind, Any if given is None else given | None)

    def create(self) -> Any:
        """Nothing yet."""
        return []

    def add(self, acc: Any, value: Any, time: int, origin: Origin) -> Any:
        """With one value more."""
        return self.add_all(acc, [value], [time], [origin])

    def add_all(
        self, acc: Any, values: Sequence[Any], times: Sequence[int], origins: Sequence[Origin]
    ) -> Any:
        """With all values."""
        pairs = [value if type(value) is tuple else (value, None) for value in values]
        fresh = [
            Ranking(value, given, time, origin.name, origin.number, origin.path)
            for (value, given), time, origin in zip(pairs, times, origins, strict=True)
        ]
        return self.merge(acc, fresh)

    def merge(self, left: Any, right: Any) -> Any:
        """The largest of both, in order."""
        both = sorted(left + right, key=Ranking.place)
        both.sort(key=lambda held: rank(held.value), reverse=True)
        return both[: self.n]

    def result(self, acc: Any) -> list[Any]:
        """The list."""
        return [held.value for held in acc]


class TopGiven(TopN):
    """What else the records of the largest values hold."""

    name: ClassVar[str] = "agg.top_n"

    def result(self, acc: Any) -> list[Any]:
        """The list."""
        return [held.given for held in acc]
