"""minimum: the least value."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

from geartrain.aggregates.ranking import Ranked, rank


class Min(Ranked):
    """The least."""

    name: ClassVar[str] = "agg.min"

    def choose(self, values: Sequence[Any]) -> Any:
        """The least; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := min(values)):
            return best
        return min(values, key=rank)
