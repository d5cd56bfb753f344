"""late: the records of a source that were late at their birth, as a stream of the source's type.

Where a flow declares it, they come here instead of to the table of late records. They obey no watermark, so
that only stateless steps and sinks may read them.
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch


class Late(Plain, frozen=True):
    """The late records of the source that is this step's input; it stands where they are born."""

    kind = "late"
    only_tier = "edge"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """The domain is the source's; there is no order, and the watermark says nothing."""
        return StreamProperties(inputs[0].domain, False, timely=False)

    def open(self, services: Services) -> Transform:
        """Nothing of the records on time passes: the fragment feeds the late ones behind this step."""
        return lambda batch: Batch([], [], [], [])
