"""minimum: the least value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.ranking import Ranked, rank


class Minimum(Ranked):
    """The least."""

    def choose(self, values: Sequence[Any]) -> Any:
        """The least; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := min(values)):
            return best
        return min(values, key=rank)


def minimum(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The least value: of numbers, text, bytes or times. NaN is skipped, unless there is nothing else.

    >>> found = minimum("price").mergeable
    >>> found.result(found.add_all(found.create(), [0.0, -0.0], [], []))
    -0.0
    """
    return Minimum().of(of)
