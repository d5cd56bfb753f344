"""last: the value of the last record in canonical order."""

from __future__ import annotations

from typing import Any, ClassVar

from geartrain.aggregates.placed import Outermost


class Last(Outermost):
    """The last."""

    name: ClassVar[str] = "agg.last"

    def merge(self, left: Any, right: Any) -> Any:
        """The later of both."""
        return left if right is None or (left is not None and left.place() >= right.place()) else right
