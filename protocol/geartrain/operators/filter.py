"""filter: keep the records for which a predicate is true, untouched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import truth
from typing import Any

from msgspec.structs import replace

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import one_by_one
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch


class Filter(Plain, frozen=True):
    """Keep records for which `predicate` is true; a record for which it raises is a dead letter."""

    predicate: Callable[[Any], Any]
    kind = "filter"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and domain are kept; keys are not."""
        above = inputs[0]
        keyed = above.key_local or above.key_order
        return replace(above, key_local=False, key_order=False) if keyed else above

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of the records kept."""
        predicate = self.predicate

        def run(batch: Batch) -> Batch:
            try:
                kept = list(map(truth, map(predicate, batch.values)))
            except USER_ERRORS:  # found again, record by record: the function is pure
                batch, kept = one_by_one(lambda value: truth(predicate(value)), batch, services)
            return batch if all(kept) else batch.where(kept)

        return run
