"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from geartrain.flow import Flow
from geartrain.graph import Graph, Step
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import ConsoleSink, MqttSink, ParquetTable, PostgresTable, Sink, Table
from geartrain.source import Source
from geartrain.stream import KeyedStream, SourceStream, Stream
from geartrain.task import Context, Task

__version__ = "0.1.0"

__all__ = [
    "ConsoleSink",
    "Context",
    "Digits",
    "Flow",
    "Graph",
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
]
