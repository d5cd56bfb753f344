"""union: one stream that arrives by several ways, put together again; nothing is added to a record.

The planner puts it before the readers of a stream which some devices make themselves and the cloud makes of
the other devices' records. A record comes by one of the ways only, so its place stays unique.
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.graph.operator import Plain, Services, StreamProperties, Transform

UNION = "union"
"""The kind of its operator."""


class Union(Plain, frozen=True):
    """Put the ways of one stream together."""

    kind = UNION
    keeps_key = True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """The order is lost, as one way may be longer than another; domain and keys are kept."""
        domains = {i.domain for i in inputs}
        return StreamProperties(
            inputs[0].domain if len(domains) == 1 else None,
            False,
            key_local=all(i.key_local for i in inputs),
            timely=all(i.timely for i in inputs),
        )

    def open(self, services: Services) -> Transform:
        """The batch itself."""
        return lambda batch: batch
