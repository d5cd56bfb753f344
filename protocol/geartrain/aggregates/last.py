"""last: the value of the last record in canonical order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.placed import Outermost


class Last(Outermost):
    """The last."""

    def merge(self, left: Any, right: Any) -> Any:
        """The later of both."""
        return left if right is None or (left is not None and left.place() >= right.place()) else right


def last(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The value of the last record by event time and origin whose value is not None; of the record itself
    where nothing is named.

    >>> from geartrain.batch import Origin
    >>> ends = last("price").mergeable
    >>> acc = ends.add(ends.create(), "later", 20, Origin("split", 0))
    >>> ends.result(ends.add(acc, "earlier", 10, Origin("split", 1)))
    'later'
    """
    return Last().of(of)
