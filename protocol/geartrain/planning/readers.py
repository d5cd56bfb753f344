"""Which readers of a stream the rows of a channel are for, and the channel's id that says it.

Between a device's cut and the cloud's plan. A device may send a stream and make something of it as well. Its
rows must then not be fed again to the readers that it runs itself. So a channel is a stream together with
the readers left out: those that stand on the device. Guarantees: an id depends on the flow's graph, the base
cut and the device's cut alone, so that device and cloud find it each for itself. With the readers that the
base cut leaves out it is the stream's own.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from geartrain.graph.graph import Graph

ID_CHARS_MAX = 63
"""Of a channel's id; a longer one is cut, and has a hash of all names instead."""

_HASH_CHARS = 16


def readers_on_edge(graph: Graph, stream: str, edge: Collection[str]) -> tuple[str, ...]:
    """The steps on the edge that read the rows of `stream`, as they are or by a key, sorted; among them each
    `key_by` on the way.

    graph: with its aggregates split, so that all cuts name readers alike.
    """
    found: set[str] = set()
    waiting = [stream]
    while waiting:
        for reader in graph.consumers(waiting.pop()):
            if reader.id in edge and reader.id not in found:
                found.add(reader.id)
                if reader.operator.kind == "key_by":
                    waiting.append(reader.id)
    return tuple(sorted(found))


def channel_id(stream: str, left_out: tuple[str, ...], by_base: tuple[str, ...]) -> str:
    """The id of the channel for the rows of `stream` without the readers `left_out`; by_base: those that the
    base cut leaves out.

    No step's id has a `-`, and none begins with a digit: `readings-flag` leaves out `flag`, `readings-0` no
    reader at all, and what follows `-0` is a hash.
    """
    if left_out == by_base:
        return stream
    name = f"{stream}-{'-'.join(left_out) or '0'}"
    if len(name) <= ID_CHARS_MAX:
        return name
    tail = f"-0{sha256(name.encode()).hexdigest()[:_HASH_CHARS]}"
    return stream[: ID_CHARS_MAX - len(tail)] + tail
