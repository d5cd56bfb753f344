"""sink: where a stream comes to rest. The tier that holds it hands its batches to the writer of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from geartrain.declarations.options import check_options
from geartrain.declarations.sink import DeviceSink, Sink
from geartrain.graph.operator import Plain, Services, Transform


class SinkOperator(Plain, frozen=True):
    """A declared sink."""

    table: Sink
    kind = "sink"

    def __post_init__(self) -> None:
        check_options(self.table)

    def open(self, services: Services) -> Transform:
        """A sink transforms nothing: its input is what the fragment hands out."""
        return lambda batch: batch

    def with_options(self, values: Mapping[str, Any], where: str) -> SinkOperator:
        """A copy whose sink has other options."""
        return replace(self, table=self.table.with_options(values, where))


class DeviceSinkOperator(SinkOperator, frozen=True):
    """A declared sink on a device."""

    only_tier: ClassVar[Literal["edge", "cloud"] | None] = "edge"


def sink_operator(table: Sink) -> SinkOperator:
    """The operator of a sink: one on a device stays there."""
    return DeviceSinkOperator(table) if isinstance(table, DeviceSink) else SinkOperator(table)
