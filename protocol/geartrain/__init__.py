"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geartrain.flow import Flow
from geartrain.graph import Graph, Step
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import Sink, Table
from geartrain.source import Source
from geartrain.stream import SourceStream, Stream

if TYPE_CHECKING:
    from geartrain import agg
    from geartrain.cloud_sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable
    from geartrain.device_sink import Actuator, Delivery, JsonLinesFile
    from geartrain.keyed import KeyedStream
    from geartrain.operators.deal import by_key
    from geartrain.task import Context, Task
    from geartrain.windowed import WindowedStream
    from geartrain.windows import every_records, every_time, global_window, session, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "Actuator",
    "ConsoleSink",
    "Context",
    "Delivery",
    "Digits",
    "Flow",
    "Graph",
    "JsonLinesFile",
    "KeyedStream",
    "MqttSink",
    "ParquetTable",
    "PostgresTable",
    "Record",
    "Sink",
    "Source",
    "SourceStream",
    "State",
    "Step",
    "Stream",
    "Table",
    "Task",
    "WindowedStream",
    "agg",
    "by_key",
    "every_records",
    "every_time",
    "global_window",
    "session",
    "sliding",
    "tumbling",
]

_MODULES = {
    "geartrain.cloud_sink": ("ConsoleSink", "MqttSink", "ParquetTable", "PostgresTable"),
    "geartrain.device_sink": ("Actuator", "Delivery", "JsonLinesFile"),
    "geartrain.keyed": ("KeyedStream",),
    "geartrain.operators.deal": ("by_key",),
    "geartrain.task": ("Context", "Task"),
    "geartrain.windowed": ("WindowedStream",),
    "geartrain.windows": ("every_records", "every_time", "global_window", "session", "sliding", "tumbling"),
}
_LATER = {name: module for module, names in _MODULES.items() for name in names}
"""Where the names are that only some flows need, so that no other pays for them on a device."""


def __getattr__(name: str) -> Any:
    """Import one of `_LATER` when it is first asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module 'geartrain' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
