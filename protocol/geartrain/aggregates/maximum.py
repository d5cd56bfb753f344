"""maximum: the greatest value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.ranking import Ranked, rank


class Maximum(Ranked):
    """The greatest."""

    def choose(self, values: Sequence[Any]) -> Any:
        """The greatest; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := max(values)):
            return best
        return max(values, key=rank)


def maximum(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The greatest value: of numbers, text, bytes or times. NaN is skipped, unless there is nothing else.

    >>> found = maximum("price").mergeable
    >>> found.result(found.add_all(found.create(), [0.0, -0.0], [], []))
    0.0
    """
    return Maximum().of(of)
