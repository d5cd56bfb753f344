"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

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
from geartrain.flow import Flow
from geartrain.graph import Graph, Step
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable, Sink, Table
from geartrain.source import Source
from geartrain.stream import KeyedStream, SourceStream, Stream
from geartrain.task import Context, Task
from geartrain.windowed import WindowedStream
from geartrain.windows import every_records, every_time, global_, session, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "AggregateSpec",
    "ConsoleSink",
    "Context",
    "Digits",
    "Flow",
    "Graph",
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
