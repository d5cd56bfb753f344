"""window reduce: one record of the records of a key in each window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.folding import Reducing
from geartrain.declarations.windows import Window
from geartrain.graph.operator import Keyed, Running, Services
from geartrain.windowing.windowing import Windowing


class WindowReduce(Keyed, frozen=True):
    """The first record of each window, and then `function(what was reduced so far, record)`."""

    window: Window
    function: Callable[[Any, Any], Any]
    kind = "window_reduce"
    ordered = True

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        return Windowing(services, self.window, Reducing(services, self.function), None)
