"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geartrain.declarations.sink import Table
from geartrain.declarations.source import Source
from geartrain.flow.flow import Flow
from geartrain.flow.stream import SourceStream, Stream
from geartrain.graph.graph import Graph
from geartrain.records.record import Record, State
from geartrain.schema import Digits

if TYPE_CHECKING:
    from geartrain import agg
    from geartrain.declarations.task import Context, Task
    from geartrain.declarations.windows import (
        every_records,
        every_time,
        global_window,
        session,
        sliding,
        tumbling,
    )
    from geartrain.flow.keyed import KeyedStream
    from geartrain.flow.windowed import WindowedStream
    from geartrain.operators.deal import by_key

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Digits",
    "Flow",
    "Graph",
    "KeyedStream",
    "Record",
    "Source",
    "SourceStream",
    "State",
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
    "geartrain.flow.keyed": ("KeyedStream",),
    "geartrain.operators.deal": ("by_key",),
    "geartrain.declarations.task": ("Context", "Task"),
    "geartrain.flow.windowed": ("WindowedStream",),
    "geartrain.declarations.windows": (
        "every_records",
        "every_time",
        "global_window",
        "session",
        "sliding",
        "tumbling",
    ),
}
_LATER = {name: module for module, names in _MODULES.items() for name in names}
"""Where the names are that only some flows need, so that no other pays for them on a device."""


def __getattr__(name: str) -> Any:
    """Import one of `_LATER` when it is first asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module 'geartrain' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
