"""The low-level face: a graph of processors that are written by hand."""

from geartrain.flow.processor import (
    Deal,
    Input,
    Node,
    Output,
    Processor,
    Way,
    broadcast,
    custom,
    dataflow,
    global_,
    hash_by,
    local,
    shuffle,
)

__all__ = [
    "Deal",
    "Input",
    "Node",
    "Output",
    "Processor",
    "Way",
    "broadcast",
    "custom",
    "dataflow",
    "global_",
    "hash_by",
    "local",
    "shuffle",
]
