"""copies: each record once for each instance of the processor below, keyed by the instance's number.

What the low-level grouping `broadcast()` means: every instance, with a state of its own, sees every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch, child_path
from geartrain.records.keys import encode_key

INSTANCES_MAX = 247
"""Instances that may each have a copy: as many as one byte of a path can number."""


class Copies(Plain, frozen=True):
    """`count` copies of each record; a copy's number is the last byte of its path."""

    count: int
    kind = "copies"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and time are kept."""
        return StreamProperties(None, inputs[0].in_order, timely=inputs[0].timely)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of all copies."""
        tails = [child_path(b"", number) for number in range(self.count)]

        def run(batch: Batch) -> Batch:
            rows = [row for row in range(len(batch)) for _ in tails]
            out = batch.take(rows)
            above = batch.paths if batch.paths is not None else [b""] * len(batch)
            out.paths = [path + tail for path in above for tail in tails]
            return out

        return run


class KeyByCopy(Plain, frozen=True):
    """Key the copies of records by their numbers."""

    kind = "key_by"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """A number is seen on every device."""
        return StreamProperties(None, inputs[0].in_order, timely=inputs[0].timely)

    def open(self, services: Services) -> Transform:
        """A function from a batch of copies to the same batch with keys."""
        keys: list[Any] = [encode_key(number) for number in range(INSTANCES_MAX + 1)]

        def run(batch: Batch) -> Batch:
            numbers = [path[-1] for path in batch.paths or []]
            return Batch(
                batch.values,
                batch.times,
                batch.names,
                batch.numbers,
                batch.paths,
                [keys[number] for number in numbers],
            )

        return run
