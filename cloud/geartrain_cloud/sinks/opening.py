"""Open the stores of one flow: its own file, and those of other kinds that its sinks ask for.

This is the one place that knows all stores. A store's library is imported when a sink needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geartrain.declarations.cloud_sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable
from geartrain.declarations.sink import DeviceSink, Sink
from geartrain.graph.graph import Graph
from geartrain.schema import derive
from geartrain_cloud.sinks.store import Store, Tables


@dataclass(frozen=True)
class OutgoingSink(Sink):
    """The outbox, for a stream that goes down to devices; named as the step that deals it."""


def open_tables(graph: Graph, path: Path, outbox: Callable[[], Store] | None = None) -> Tables:
    """The stores of a flow, every sink declared; raises `TableError`.

    outbox: opens that of a flow in which streams go down to devices.
    """
    flow = graph.name

    def postgres() -> Store:
        from geartrain_cloud.sinks.postgres import PostgresTables

        return PostgresTables(flow)

    def parquet() -> Store:
        from geartrain_cloud.sinks.parquet import ParquetTables

        return ParquetTables(path.parent)

    def console() -> Store:
        from geartrain_cloud.sinks.console import Console

        return Console()

    def mqtt() -> Store:
        from geartrain_cloud.sinks.mqtt import MqttTopics

        return MqttTopics(flow)

    stores: dict[type[Sink], Callable[[], Store]] = {
        PostgresTable: postgres,
        ParquetTable: parquet,
        ConsoleSink: console,
        MqttSink: mqtt,
    }
    if outbox is not None:
        stores[OutgoingSink] = outbox
    tables = Tables(path, stores)
    for step in graph.sinks():
        sink = getattr(step.operator, "table", None)
        if sink is not None and not isinstance(sink, DeviceSink):
            tables.declare(step.id, sink, derive(graph[step.inputs[0].step].out))
    for step in graph.steps:
        if step.operator.kind == "deal":
            tables.declare(step.id, OutgoingSink(step.id), derive(step.out))
    return tables
