"""window fold: a state of each window that takes in the records of a key one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.folding import FoldCalls, Folding
from geartrain.declarations.windows import Window
from geartrain.graph.operator import Keyed, Running, Services
from geartrain.windowing.windowing import Windowing


class WindowFold(Keyed, frozen=True):
    """`function(state, record)` from `make()` on in each window; the result is `result(state)`, or the state.

    state: the state's type.
    """

    window: Window
    make: Callable[[], Any]
    function: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None
    state: Any
    kind = "window_fold"
    ordered = True

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        calls = FoldCalls(self.make, self.function, self.result)
        return Windowing(services, self.window, Folding(services, calls, self.state), None)
