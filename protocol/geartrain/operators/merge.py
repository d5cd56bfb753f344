"""merge: several streams of one type as one; each record's path is extended by the number of its input."""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.graph.operator import Plain, Running, Services, StreamProperties
from geartrain.records.batch import Batch, child_path


class Merge(Plain, frozen=True):
    """Put the records of all inputs on one stream.

    The input's number in the path keeps places unique even where a stream is merged with itself.
    """

    kind = "merge"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """The order is lost; a domain is kept where all inputs share it."""
        domains = {i.domain for i in inputs}
        domain = inputs[0].domain if len(domains) == 1 else None
        return StreamProperties(domain, False, timely=all(i.timely for i in inputs))

    def open(self, services: Services) -> Running:
        """The operator at work; it keeps nothing."""
        return _Merging()


class _Merging:
    def feed(self, batch: Batch, port: int) -> Batch:
        """The same records, each with its input's number at the end of its path."""
        tail = child_path(b"", port)
        paths = [tail] * len(batch) if batch.paths is None else [path + tail for path in batch.paths]
        return Batch(batch.values, batch.times, batch.names, batch.numbers, paths)

    def advance(self, watermark: int) -> Batch:
        """Nothing waits."""
        return Batch([], [], [], [])
