"""filter: keep the records for which a predicate is true, untouched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geartrain.batch import Batch
from geartrain.operators.conform import dead_letter, describe
from geartrain.operators.operator import Plain, Services, StreamProperties, Transform


@dataclass(frozen=True)
class Filter(Plain):
    """Keep records for which `predicate` is true; a record for which it raises is a dead letter."""

    predicate: Callable[[Any], Any]
    kind = "filter"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and domain are kept; keys are not."""
        return replace(inputs[0], key_local=False, key_order=False)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of the records kept."""
        predicate = self.predicate

        def run(batch: Batch) -> Batch:
            try:
                kept = [row for row, value in enumerate(batch.values) if predicate(value)]
            except Exception:  # found again, record by record: the function is pure
                kept = _one_by_one(predicate, batch, services)
            return batch if len(kept) == len(batch) else batch.take(kept)

        return run


def _one_by_one(predicate: Callable[[Any], Any], batch: Batch, services: Services) -> list[int]:
    kept = []
    for row, value in enumerate(batch.values):
        try:
            if predicate(value):
                kept.append(row)
        except Exception as error:
            services.reject(dead_letter(services, batch, row, describe(error)))
    return kept
