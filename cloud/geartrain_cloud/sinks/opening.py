"""Open the stores of one flow: its own file, and those of other kinds that its sinks ask for.

This is the one place that knows all stores. A store's library is imported when a sink needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.declarations.cloud_sink import (
    ConsoleSink,
    DeltaTable,
    KafkaSink,
    MqttSink,
    ParquetTable,
    PostgresTable,
    WebhookSink,
)
from geartrain.declarations.sink import DeviceSink, Sink, Table
from geartrain.graph.graph import Graph
from geartrain.schema import Schema, derive
from geartrain_cloud.sinks.defaults import column_defaults
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.limits import check_postgres
from geartrain_cloud.sinks.own import OwnTables
from geartrain_cloud.sinks.secrets import NONE, SinkSecrets
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Store, Tables


def is_anew(sink: Sink) -> bool:
    """Whether each run of an app writes a sink beside its tables in a folder of its own."""
    return isinstance(sink, ParquetTable | DeltaTable) and not sink.folder


@dataclass(frozen=True)
class OutgoingSink(Sink):
    """The outbox, for a stream that goes down to devices; named as the step that deals it."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """A sink as data: the id of its step, where its records come to rest, their schema, and its defaults for
    rows that are older than a field.
    """

    id: str
    sink: Sink
    schema: Schema
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The same, as stores take it that evolve."""
        return Layout(self.id, self.sink, self.schema, self.defaults)


def sink_places(graph: Graph) -> list[SinkPlace]:
    """The sinks of a flow that the cloud writes, and the streams that go down to devices."""
    found = []
    for step in graph.sinks():
        sink = getattr(step.operator, "table", None)
        if sink is not None and not isinstance(sink, DeviceSink):
            out = graph[step.inputs[0].step].out
            found.append(SinkPlace(step.id, sink, derive(out), column_defaults(out)))
    dealt = [step for step in graph.steps if step.operator.kind == "deal"]
    return found + [SinkPlace(step.id, OutgoingSink(step.id), derive(step.out)) for step in dealt]


def check_places(flow: str, places: Iterable[SinkPlace], *, in_postgres: bool) -> None:
    """Raise `TableError` for the first sink that its store will not take, as far as that is known without
    connecting to it. in_postgres: whether tables of flows go there, as `[tables] store` of the platform says.
    """
    stores = _openers(flow, Path(), NONE)
    for place in places:
        layout = place.layout
        if isinstance(place.sink, Table) and in_postgres:
            check_postgres(layout)
        elif opener := stores.get(type(place.sink)):
            layout.check_complete()
            opener().check(layout)
        else:
            layout.check()


def open_tables(graph: Graph, path: Path, outbox: Callable[[], Store] | None = None) -> Tables:
    """The stores of a flow, every sink declared; raises `TableError`.

    outbox: opens that of a flow in which streams go down to devices.
    """
    return open_places(graph.name, sink_places(graph), SqliteTables(path), path.parent, outbox)


def open_places(
    flow: str,
    places: Iterable[SinkPlace],
    own: OwnTables,
    folder: Path,
    outbox: Callable[[], Store] | None = None,
    *,
    evolving: bool = False,
    secrets: SinkSecrets = NONE,
) -> Tables:
    """As `open_tables`, of sinks as data.

    own: the flow's own tables, which are closed where this raises; folder: for files of other sinks; secrets:
    those that sinks ask for; evolving: as by `Tables.evolve`, so that tables may differ from these sinks, and
    become them with the next micro-batch that is written.
    """
    stores = _openers(flow, folder, secrets)
    if outbox is not None:
        stores[OutgoingSink] = outbox
    tables = Tables(own, stores)
    try:
        if evolving:
            tables.evolve([place.layout for place in places])
        for place in () if evolving else places:
            tables.declare(place.id, place.sink, place.schema)
    except BaseException:
        tables.close()
        raise
    return tables


def _openers(flow: str, folder: Path, secrets: SinkSecrets) -> dict[type[Sink], Callable[[], Store]]:
    """How the store of each kind of sink is opened."""

    def postgres() -> Store:
        from geartrain_cloud.sinks.postgres import PostgresTables

        return PostgresTables(flow, secrets)

    def parquet() -> Store:
        from geartrain_cloud.sinks.parquet import ParquetTables

        return ParquetTables(folder)

    def delta() -> Store:
        from geartrain_cloud.sinks.delta import DeltaTables

        return DeltaTables(flow, folder)

    def console() -> Store:
        from geartrain_cloud.sinks.console import Console

        return Console()

    def mqtt() -> Store:
        from geartrain_cloud.sinks.mqtt import MqttTopics

        return MqttTopics(flow)

    def kafka() -> Store:
        from geartrain_cloud.sinks.kafka import KafkaTopics

        return KafkaTopics(flow, secrets)

    def webhooks() -> Store:
        from geartrain_cloud.sinks.webhook import Webhooks

        return Webhooks(secrets)

    return {
        PostgresTable: postgres,
        ParquetTable: parquet,
        DeltaTable: delta,
        ConsoleSink: console,
        MqttSink: mqtt,
        KafkaSink: kafka,
        WebhookSink: webhooks,
    }
