"""fold: a state of a key, or of each of its windows, that takes in record after record.

Without a window there is a result for each record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.contents import kept_type
from geartrain.accumulating.folding import FoldCalls, Folding
from geartrain.accumulating.running import running
from geartrain.declarations.windows import Window
from geartrain.graph.operator import Keyed, Running, Services, Transform
from geartrain.operators.windowed import Windowed
from geartrain.state.told import Told, opened
from geartrain.windowing.open_windows import told_windows
from geartrain.windowing.windowing import Windowing


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

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The state of the key."""
        return Told(opened(services.step, kept_type(kept_type(self.state)), cell).state.state)


class WindowFold(Windowed, frozen=True):
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
        return Windowing(services, self.window, self._content(services), None)

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The open windows of the key."""
        return told_windows(services, self._content(services), key, cell)

    def _content(self, services: Services) -> Folding:
        return Folding(services, FoldCalls(self.make, self.function, self.result), self.state)
