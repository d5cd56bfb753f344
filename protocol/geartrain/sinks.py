"""The sinks of a flow: tables, files and topics in the data centre; files and actuators on a device.

What each promises is in docs/sinks.md. `Table` is in `geartrain` itself, too: most flows need no other.
"""

from geartrain.declarations.cloud_sink import (
    ConsoleSink,
    DeltaTable,
    KafkaSink,
    MqttSink,
    ParquetTable,
    PostgresTable,
    WebhookSink,
)
from geartrain.declarations.device_sink import Actuator, Delivery, JsonLinesFile
from geartrain.declarations.sink import Sink, Table

__all__ = [
    "Actuator",
    "ConsoleSink",
    "Delivery",
    "DeltaTable",
    "JsonLinesFile",
    "KafkaSink",
    "MqttSink",
    "ParquetTable",
    "PostgresTable",
    "Sink",
    "Table",
    "WebhookSink",
]
