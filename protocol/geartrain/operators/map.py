"""map: one record in, one record out, with the same event time and origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, one_by_one
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform, transformed
from geartrain.records.batch import Batch


class Map(Plain, frozen=True):
    """Apply `function` to each record; a record for which it raises is a dead letter.

    keeps: fields that the function passes on unchanged, so that a partition domain on one of them is kept.
    """

    function: Callable[[Any], Any]
    keeps: frozenset[str] = frozenset()
    kind = "map"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is kept, and a domain that is among `keeps`."""
        return transformed(inputs, self.keeps)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of results."""
        function, check = self.function, checker(services)

        def run(batch: Batch) -> Batch:
            try:
                values = [function(value) for value in batch.values]
            except USER_ERRORS:  # found again, record by record: the function is pure
                batch, values = one_by_one(function, batch, services)
            return check(Batch(values, batch.times, batch.names, batch.numbers, batch.paths))

        return run
