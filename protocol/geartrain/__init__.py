"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from geartrain.flow import Flow
from geartrain.graph import Graph, Step
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import Table
from geartrain.source import Source
from geartrain.stream import KeyedStream, Stream
from geartrain.task import Context, Task

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Digits",
    "Flow",
    "Graph",
    "KeyedStream",
    "Record",
    "Source",
    "State",
    "Step",
    "Stream",
    "Table",
    "Task",
]
