"""Open the stores of one flow: its own file, and those of other kinds that its sinks ask for.

The one place that knows all stores; a library of one is imported when a sink needs it.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.graph import Graph
from geartrain.schema import derive
from geartrain.sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable
from geartrain_cloud.sinks.store import Store, Tables


def open_tables(graph: Graph, path: Path) -> Tables:
    """The stores of a flow, every sink declared; raises `TableError`."""
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

    stores = {PostgresTable: postgres, ParquetTable: parquet, ConsoleSink: console, MqttSink: mqtt}
    tables = Tables(path, stores)
    for step in graph.sinks():
        sink = getattr(step.operator, "table", None)
        if sink is not None:
            tables.declare(step.id, sink, derive(graph[step.inputs[0].step].out))
    return tables
