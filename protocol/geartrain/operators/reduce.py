"""reduce: one record of all records of a key, or of those in each of its windows.

Without a window there is a result for each record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.contents import kept_type
from geartrain.accumulating.folding import Reducing
from geartrain.accumulating.running import running
from geartrain.declarations.windows import Window
from geartrain.graph.operator import Keyed, Running, Services, Transform
from geartrain.operators.windowed import Windowed
from geartrain.state.told import Told, opened
from geartrain.windowing.open_windows import told_windows
from geartrain.windowing.windowing import Windowing


class Reduce(Keyed, frozen=True):
    """The first record of a key, and then `function(what was reduced so far, record)`."""

    function: Callable[[Any, Any], Any]
    kind = "reduce"
    ordered = True

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of running results."""
        return running(services, Reducing(services, self.function))

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """What the records of the key were reduced to."""
        return Told(opened(services.step, kept_type(kept_type(services.inputs[0])), cell).state.state)


class WindowReduce(Windowed, frozen=True):
    """The first record of each window, and then `function(what was reduced so far, record)`."""

    window: Window
    function: Callable[[Any, Any], Any]
    kind = "window_reduce"
    ordered = True

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        return Windowing(services, self.window, Reducing(services, self.function), None)

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The open windows of the key."""
        return told_windows(services, Reducing(services, self.function), key, cell)
