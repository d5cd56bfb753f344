"""flat_map: one record in, any number out, each with the input's event time and its own place below its
origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, raised_letter
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform, transformed
from geartrain.records.batch import Batch
from geartrain.records.children import Children


class FlatMap(Plain, frozen=True):
    """Apply `function` to each record and emit what it yields; a record for which it raises is a dead letter.

    keeps: fields that the function passes on unchanged, so that a partition domain on one of them is kept.
    """

    function: Callable[[Any], Iterable[Any]]
    keeps: frozenset[str] = frozenset()
    kind = "flat_map"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is kept, and a domain that is among `keeps`."""
        return transformed(inputs, self.keeps)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of all children."""
        function, check = self.function, checker(services)

        def run(batch: Batch) -> Batch:
            out = Children()
            for row, value in enumerate(batch.values):
                try:
                    children = list(function(value))
                except USER_ERRORS as error:
                    services.reject(raised_letter(services, batch, row, error))
                    continue
                out.add(batch, row, children)
            return check(out.batch())

        return run
