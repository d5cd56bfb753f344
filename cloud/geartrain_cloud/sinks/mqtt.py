"""Records as messages to an MQTT topic, for programs outside that listen.

A store beside the flow's own tables. Guarantees at least once: a micro-batch is published before the flow's
own file says that it is done. After a crash between the two, it is published again. Each message has its
record's `_id`, the same in every repetition. With TLS, the broker's certificate and name are always checked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.tls import Broker, BrokerTable, context_of
from geartrain.concurrency.client_id import ID_BYTES, client_id
from geartrain.declarations.cloud_sink import TOPIC_FIELD, MqttSink
from geartrain.declarations.sink import Sink
from geartrain.errors import NetError
from geartrain.records.codes import Code, Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain.schema.plain import plain_rows
from geartrain_cloud.sinks.layout import Layout, TableError, table_errors
from geartrain_cloud.sinks.rows import message_rows
from geartrain_cloud.sinks.store import Rows

_LOG = logging.getLogger("geartrain.sinks")
_ATTEMPTS = 20
_PAUSE_S = 1.0
_NO_CHARACTERS = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
_UNSAFE = re.compile(rf"[/+#\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_NO_CHARACTERS}]")
"""What would change the levels of a topic, and what a broker may end the connection for: control characters
and what Unicode calls noncharacters (MQTT 3.1.1, 1.5.3).
"""
TOPIC_BYTES_MAX = 65_535


class MqttTopics:
    """The MQTT sinks of one flow."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        # Another platform may have a flow of this name, and the same broker.
        self._own = os.urandom(ID_BYTES).hex()
        self._sinks: dict[str, tuple[MqttSink, Schema, Broker]] = {}

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say what comes; raises `TableError` for a topic that cannot be, and for files that cannot."""
        if isinstance(sink, MqttSink):
            Layout(sink_id, sink, schema).check_complete()
            self._sinks[sink_id] = (sink, schema, self._broker_of(sink_id, sink))

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for a topic that cannot be, and for files that cannot."""
        if isinstance(layout.table, MqttSink):
            layout.check_complete()
            self._broker_of(layout.sink, layout.table)

    def _broker_of(self, sink_id: str, sink: MqttSink) -> Broker:
        """Where a sink publishes; the sinks that say the same share one, and its connections."""
        for other, _, broker in self._sinks.values():
            if _way(other) == _way(sink):
                return broker
        keys = BrokerTable("", sink.tls, sink.ca, sink.certificate, sink.private_key)
        with table_errors():
            context = context_of(keys, Path(), f"steps.{sink_id}", "private_key")
        return Broker(sink.host, sink.port, context)

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Nothing is kept here."""

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows whose topic is too long."""
        sink, schema, _ = self._sinks[sink_id]
        if not TOPIC_FIELD.search(sink.topic):
            return {}
        topics = (_topic(sink.topic, row) for row in plain_rows(schema, rows))
        sizes = (len(topic.encode()) for topic in topics)
        return {
            row: Refusal(
                Code.TOO_LARGE,
                f"its topic {sink.topic} takes {size} bytes, and MQTT takes {TOPIC_BYTES_MAX}: put shorter "
                "fields into the topic of the sink",
            )
            for row, size in enumerate(sizes)
            if size > TOPIC_BYTES_MAX
        }

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Publish a micro-batch; raises `TableError` where the broker stays away."""
        by_broker: dict[Broker, list[tuple[str, bytes]]] = {}
        for sink_id, batches in rows.items():
            sink, schema, broker = self._sinks[sink_id]
            for batch in batches:
                by_broker.setdefault(broker, []).extend(_messages(sink, schema, batch))
        for broker, messages in by_broker.items():
            asyncio.run(self._publish(broker, query, messages))

    async def _publish(self, broker: Broker, query: str, messages: list[tuple[str, bytes]]) -> None:
        net, sent = AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context), 0
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with net.connect(client_id("sink", self._flow, query, self._own)) as connection:
                    while sent < len(messages):
                        await connection.publish(*messages[sent])
                        sent += 1
                    await connection.drain()
                return
            except NetError as error:
                # What the broker has not acknowledged may be gone with the connection: all of it once more.
                sent = 0
                if attempt == _ATTEMPTS:
                    raise TableError(f"the broker {net} of a sink stays away: {error}") from error
                _LOG.warning("the broker %s of a sink is away: %s", net, error)
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Nothing is open."""


def _way(sink: MqttSink) -> tuple[object, ...]:
    return (sink.host, sink.port, sink.tls, sink.ca, sink.certificate, sink.private_key)


def _messages(sink: MqttSink, schema: Schema, rows: ColumnBatch) -> list[tuple[str, bytes]]:
    return [
        (_topic(sink.topic, message), msgspec.json.encode(message)) for message in message_rows(schema, rows)
    ]


def _topic(template: str, row: Mapping[str, Any]) -> str:
    topic = TOPIC_FIELD.sub(lambda name: _level(row[name[1]]), template)
    # A broker keeps topics that begin so for itself: it drops them, or hides them from who listens to all.
    return f"_{topic[1:]}" if topic.startswith("$") and template.startswith("{") else topic


def _level(value: Any) -> str:
    """A value as one level of a topic: what would change its levels or its meaning becomes `_`."""
    return _UNSAFE.sub("_", str(value)) or "_"
