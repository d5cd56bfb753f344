"""fold: a state of a key that takes in record after record, with a result for each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.folding import FoldCalls, Folding
from geartrain.accumulating.running import running
from geartrain.graph.operator import Keyed, Services, Transform


class Fold(Keyed, frozen=True):
    """`function(state, record)` from `make()` on; the result is `result(state)`, or the state itself.

    state: the state's type.
    """

    make: Callable[[], Any]
    function: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None
    state: Any
    kind = "fold"
    ordered = True

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of running results."""
        calls = FoldCalls(self.make, self.function, self.result)
        return running(services, Folding(services, calls, self.state))
