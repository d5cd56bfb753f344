"""sink: where a stream comes to rest. The tier that holds it hands its batches to the writer of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from geartrain.declarations.options import check_options
from geartrain.declarations.sink import DeviceSink, Sink, Table
from geartrain.errors import FlowError
from geartrain.graph.graph import Graph
from geartrain.graph.operator import Plain, Services, Transform
from geartrain.schema import derive


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


def check_sinks(graph: Graph, *, is_complete: bool) -> None:
    """Ask each sink what its place will refuse, before any source is read.

    Args:
        graph: the flow, with all options that are known.
        is_complete: whether nobody can set further options, so that none may be missing.

    Raises:
        ConfigError: one sentence that names the sink, and the field or option to change.
    """
    for step in graph.sinks():
        if isinstance(step.operator, SinkOperator):
            if is_complete:
                step.operator.table.check_complete(step.id)
            step.operator.table.check(step.id, derive(graph[step.inputs[0].step].out))


def check_tables(graph: Graph) -> None:
    """Raise `FlowError` where two sinks are one `Table`: the tables of a flow are in one file, which knows no
    case of letters.
    """
    found: dict[str, str] = {}
    for step in graph.sinks():
        if not isinstance(step.operator, SinkOperator) or not isinstance(step.operator.table, Table):
            continue
        name = step.operator.table.name
        if (other := found.setdefault(name.lower(), step.id)) != step.id:
            raise FlowError(
                f"flow {graph.name}: sinks {other!r} and {step.id!r} are both table {name!r}: give one of "
                "them another name, or merge their streams into one sink"
            )
