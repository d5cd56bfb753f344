"""iterate: a stateless body applied to each record again and again, until a predicate holds or n rounds are
done.

Unrolled for each record where it stands, so that the graph has no cycle and a round costs a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geartrain.graph.operator import Plain, Services, StreamProperties, Transform, transformed
from geartrain.operators.map import Map


class Iterate(Plain, frozen=True):
    """`value = body(value)` until `until(value)` is true, at most `rounds_max` times; one record comes out.

    The body runs at least once; without `until` it runs `rounds_max` times. A record for which either raises
    is a dead letter.
    """

    body: Callable[[Any], Any]
    until: Callable[[Any], bool] | None
    rounds_max: int
    kind = "iterate"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is kept, as by map."""
        return transformed(inputs, frozenset())

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of results."""
        return Map(self.rounds).open(services)

    def rounds(self, value: Any) -> Any:
        """The value after all its rounds."""
        for _ in range(self.rounds_max):
            value = self.body(value)
            if self.until is not None and self.until(value):
                break
        return value
