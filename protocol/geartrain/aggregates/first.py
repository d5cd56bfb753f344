"""first: the value of the first record in canonical order."""

from __future__ import annotations

from typing import Any, ClassVar

from geartrain.aggregates.placed import Outermost


class First(Outermost):
    """The first."""

    name: ClassVar[str] = "agg.first"

    def merge(self, left: Any, right: Any) -> Any:
        """The earlier of both."""
        return left if right is None or (left is not None and left.place() <= right.place()) else right
