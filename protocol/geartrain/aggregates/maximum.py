"""maximum: the greatest value."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar

from geartrain.aggregates.ranking import Ranked, rank


class Max(Ranked):
    """The greatest."""

    name: ClassVar[str] = "agg.max"

    def choose(self, values: Sequence[Any]) -> Any:
        """The greatest; zeros and mixed types are told apart by `rank`."""
        kinds = set(map(type, values))
        if len(kinds) == 1 and Decimal not in kinds and (best := max(values)):
            return best
        return max(values, key=rank)
