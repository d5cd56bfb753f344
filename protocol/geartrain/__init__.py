"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geartrain.flow import Flow
from geartrain.graph import Graph
from geartrain.record import Record, State
from geartrain.schema import Digits
from geartrain.sink import Table
from geartrain.source import Source
from geartrain.stream import SourceStream, Stream

if TYPE_CHECKING:
    from geartrain import agg
    from geartrain.keyed import KeyedStream
    from geartrain.operators.deal import by_key
    from geartrain.task import Context, Task
    from geartrain.windowed import WindowedStream
    from geartrain.windows import every_records, every_time, global_window, session, sliding, tumbling

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
