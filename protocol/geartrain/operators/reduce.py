"""reduce: one record of a key's records so far, with a result for each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.accumulating.folding import Reducing
from geartrain.accumulating.running import running
from geartrain.graph.operator import Keyed, Services, Transform


class Reduce(Keyed, frozen=True):
    """The first record of a key, and then `function(what was reduced so far, record)`."""

    function: Callable[[Any, Any], Any]
    kind = "reduce"
    ordered = True

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of running results."""
        return running(services, Reducing(services, self.function))
