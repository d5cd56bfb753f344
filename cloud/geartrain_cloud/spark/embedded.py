"""The keyed steps of a query inside Spark's transformWithState: one call for each shard of a micro-batch.

Stands behind the shuffle. The same fragment runs here as on a device; Spark keeps its state in checkpoints.
Guarantees: the rows of a shard are run in the order of the log, each once; a shard whose positions would go
back stops the query. Spark hands over all rows of a shard in one call, in any order, and writes the state of
a micro-batch wholly or not at all.

State of a shard: 64 buckets, a user key in bucket `crc32(key) // shards % 64`, each a msgpack value `{step:
{encoded key: state}}`, because one Spark value for each user key costs ten times more. Bucket -1 holds
`{stream: last position}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol
from zlib import crc32

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from geartrain.batch import Batch
from geartrain.errors import LedgerError
from geartrain.graph import DEAD_LETTERS
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain_cloud.spark.chains import Outputs
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.pack import pack, unpack

BUCKETS = 64
"""Buckets of one shard; fixed for the life of a checkpoint."""

_POSITIONS = -1
_encode = msgspec.msgpack.Encoder().encode
_decode_bucket = msgspec.msgpack.Decoder(dict[str, dict[bytes, bytes]]).decode
_decode_positions = msgspec.msgpack.Decoder(dict[str, int]).decode


class StateMap(Protocol):
    """What is used of Spark's MapState."""

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        """The value of `key`, None where there is none."""
        ...

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        """Set the value of `key`."""
        ...


class BucketState:
    """Saved state of one shard, for one call: buckets are read when they are first touched (a
    `StateBackend`).
    """

    def __init__(self, state: StateMap, shards: int) -> None:
        self._state, self._shards = state, shards
        self._buckets: dict[int, dict[str, dict[bytes, bytes]]] = {}
        raw = self._raw(_POSITIONS)
        self.positions = {} if raw is None else _decode_positions(raw)

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved msgpack of (step, encoded key), None where there is none."""
        return self._bucket(self._number(key)).get(step, {}).get(key)

    def save(self, changes: dict[tuple[str, bytes], bytes | None]) -> None:
        """Write what changed, and the positions."""
        touched: set[int] = set()
        for (step, key), value in changes.items():
            number = self._number(key)
            touched.add(number)
            states = self._bucket(number).setdefault(step, {})
            if value is None:
                states.pop(key, None)
            else:
                states[key] = value
        for number in sorted(touched):
            self._state.updateValue((number,), (_encode(self._buckets[number]),))
        self._state.updateValue((_POSITIONS,), (_encode(self.positions),))

    def _bucket(self, number: int) -> dict[str, dict[bytes, bytes]]:
        if number not in self._buckets:
            raw = self._raw(number)
            self._buckets[number] = {} if raw is None else _decode_bucket(raw)
        return self._buckets[number]

    def _raw(self, number: int) -> bytes | None:
        found = self._state.getValue((number,))
        return None if found is None else bytes(found[0])

    def _number(self, key: bytes) -> int:
        # The shard is the remainder of the same checksum, so the bucket takes the quotient.
        return crc32(key) // self._shards % BUCKETS


class EmbeddedFragment(StatefulProcessor):
    """The steps `query.keyed`, one fragment a call, over packed rows grouped by shard."""

    def __init__(self, query: Query, shards: int) -> None:
        self._query, self._shards = query, shards
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take hold of the state."""
        self._state = handle.getMapState("buckets", "bucket int", "packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Run a shard's rows of this micro-batch, `SHARD_ROWS` to `SINK_ROWS`."""
        return self.run(self._state, list(rows))

    def run(self, state: StateMap, rows: list[Row]) -> Iterator[Row]:
        """As `handleInputRows`, over any map of buckets; raises `LedgerError` where positions go back."""
        query = self._query
        saved = BucketState(state, self._shards)
        fragment = Fragment(query.graph, query.keyed, saved)
        codecs = {stream: RowCodec(query.graph[stream].out) for stream in query.boundaries}
        outputs = Outputs(query)
        for row in sorted(rows, key=lambda r: (r.stream, r.position)):
            if row.stream == DEAD_LETTERS:
                yield Row(sink=DEAD_LETTERS, packed=bytes(row.packed))
                continue
            last = saved.positions.get(row.stream, 0)
            if row.position <= last:
                raise LedgerError(
                    f"stream {row.stream!r}, shard {row.shard}: position {row.position} came after {last}, "
                    "so records would be run twice or out of order: keep log and checkpoint and report this"
                )
            saved.positions[row.stream] = row.position
            held = unpack(bytes(row.packed))
            values = codecs[row.stream].from_columns(held.fields)
            fragment.feed(row.stream, Batch(values, held.times, held.names, held.numbers, held.paths))
            for sink, records in outputs.take(fragment):
                yield Row(sink=sink, packed=pack(records))
        saved.save(fragment.changes())
        fragment.close()

    def close(self) -> None:
        """Nothing is held between calls."""
