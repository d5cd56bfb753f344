"""arrival: the rows of a stream that come over a channel, where the cloud makes the same stream as well.

The planner puts it into the cloud's graph of a flow whose devices have different cuts. It never runs: a
fragment is fed under its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.graph.operator import Plain, Services, StreamProperties, Transform

ARRIVAL = "arrival"
"""The kind of its operator."""


class Arrival(Plain, frozen=True):
    """Stands for the records of its input that devices have made themselves."""

    kind = ARRIVAL
    keeps_key = True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """All is kept."""
        return inputs[0]

    def open(self, services: Services) -> Transform:
        """The batch itself."""
        return lambda batch: batch
