"""The clocks of a flow's sources as they travel through a query, and the clock of a stream.

They stand beside the rows: the reader of the log finds them where a micro-batch ends, and ticks bring them to
every shard. Guarantees: the clock of a stream is the least of the sources above it, because no operator adds
a delay. So it does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from geartrain.graph.graph import Graph
from geartrain.records.event_time import START_OF_TIME

Clocks = Mapping[str, int]
"""By source step, its clock in microseconds; one that has none yet is absent."""

_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(dict[str, int]).decode


def encode_clocks(clocks: Clocks) -> bytes:
    """Clocks as bytes."""
    return _encode(dict(clocks))


def decode_clocks(packed: bytes) -> dict[str, int]:
    """The clocks that `encode_clocks` was given."""
    return _decode(packed)


def least_clock(clocks: Clocks, sources: Collection[str]) -> int:
    """The clock of what comes from all of `sources`, microseconds; START_OF_TIME while one has none."""
    return min((clocks.get(source, START_OF_TIME) for source in sources), default=START_OF_TIME)


def sources_of(graph: Graph, streams: Iterable[str]) -> dict[str, frozenset[str]]:
    """The sources above each of `streams`: all of the flow's above one of its system channels."""
    above, every = graph.sources_above(), frozenset(step.id for step in graph.sources())
    return {stream: above.get(stream, every) for stream in streams}
