"""sink: where a stream comes to rest. The tier that holds it hands its batches to the table's writer."""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.operators.operator import Plain, Services, Transform
from geartrain.sink import Table


@dataclass(frozen=True)
class SinkOperator(Plain):
    """A declared sink."""

    table: Table
    kind = "sink"

    def open(self, services: Services) -> Transform:
        """A sink transforms nothing: its input is what the fragment hands out."""
        return lambda batch: batch
