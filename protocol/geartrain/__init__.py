"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geartrain.flow import Flow
from geartrain.graph import Graph, Step
from geartrain.keyed import KeyedStream
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable, Sink, Table
from geartrain.source import Source
from geartrain.stream import SourceStream, Stream
from geartrain.task import Context, Task
from geartrain.windows import every_records, every_time, global_, session, sliding, tumbling

if TYPE_CHECKING:
    from geartrain.aggregates import (
        AggregateSpec,
        Mergeable,
        count,
        distinct,
        first,
        last,
        maximum,
        mean,
        minimum,
        quantile,
        top_n,
        total,
        variance,
    )
    from geartrain.device_sink import Actuator, Delivery, JsonLinesFile
    from geartrain.operators.deal import by_key
    from geartrain.windowed import WindowedStream

__version__ = "0.1.0"

__all__ = [
    "Actuator",
    "AggregateSpec",
    "ConsoleSink",
    "Context",
    "Delivery",
    "Digits",
    "Flow",
    "Graph",
    "JsonLinesFile",
    "KeyedStream",
    "Mergeable",
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
    "by_key",
    "count",
    "distinct",
    "every_records",
    "every_time",
    "first",
    "global_",
    "last",
    "maximum",
    "mean",
    "minimum",
    "quantile",
    "session",
    "sliding",
    "top_n",
    "total",
    "tumbling",
    "variance",
]

_LATER = {"WindowedStream": "geartrain.windowed"} | dict.fromkeys(
    (
        "AggregateSpec",
        "Mergeable",
        "count",
        "distinct",
        "first",
        "last",
        "maximum",
        "mean",
        "minimum",
        "quantile",
        "top_n",
        "total",
        "variance",
    ),
    "geartrain.aggregates",
)
_LATER |= dict.fromkeys(("Actuator", "Delivery", "JsonLinesFile"), "geartrain.device_sink")
_LATER["by_key"] = "geartrain.operators.deal"
"""Where the names are that only some flows need, so that no other pays for them on a device."""


def __getattr__(name: str) -> Any:
    """Import one of `_LATER` when it is first asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module 'geartrain' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
