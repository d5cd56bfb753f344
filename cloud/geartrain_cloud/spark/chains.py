"""The stateless steps of a query inside Spark: packed rows of the log in, packed rows for sinks or shards
out.

Stands where the log is read, as the function of a `mapInArrow`. The same fused chains run here as on a
device. Guarantees: no state is kept from row to row, so any task may be run again; rows of one stream and
position stay together and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from geartrain.batch import Batch
from geartrain.errors import LedgerError
from geartrain.graph import DEAD_LETTERS, LATE
from geartrain.letters import Letter
from geartrain.operators.operator import Services
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.log.arrow import arrow_schema, from_table
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.pack import ipc_to_table, pack, take
from geartrain_cloud.spark.shards import shard_of

SINK_ROWS = "sink string, packed binary"
"""What leaves a query: records of one sink."""

SHARD_ROWS = "shard int, stream string, position long, packed binary"
"""What goes into the shuffle: records of one stream whose keys live in one shard, as of one position of the
log.

Rows of the stream `_dead_letters` have no key; they only pass through.
"""

RecordBatches = Iterator[pa.RecordBatch]


def stateless_rows(query: Query) -> Callable[[RecordBatches], RecordBatches]:
    """The whole of a query without state: `SOURCE_SCHEMA` to `SINK_ROWS`."""

    def run(batches: RecordBatches) -> RecordBatches:
        chains = Chains(query)
        for channel, _, table in _packed_rows(batches):
            outputs = chains.run(channel, table)
            if outputs:
                yield pa.record_batch(
                    {
                        "sink": pa.array([sink for sink, _ in outputs], pa.string()),
                        "packed": pa.array([pack(rows) for _, rows in outputs], pa.binary()),
                    }
                )

    return run


def sharded_rows(query: Query, labels: Sequence[int]) -> Callable[[RecordBatches], RecordBatches]:
    """The part of a query above its state: `SOURCE_SCHEMA` to `SHARD_ROWS`; labels: what each shard is
    called.
    """

    def run(batches: RecordBatches) -> RecordBatches:
        chains = Chains(query)
        for channel, position, table in _packed_rows(batches):
            parts = chains.shards(channel, table, len(labels))
            if parts:
                yield pa.record_batch(
                    {
                        "shard": pa.array([labels[shard] for shard, _, _ in parts], pa.int32()),
                        "stream": pa.array([stream for _, stream, _ in parts], pa.string()),
                        "position": pa.array([position] * len(parts), pa.int64()),
                        "packed": pa.array([pack(rows) for _, _, rows in parts], pa.binary()),
                    }
                )

    return run


def _packed_rows(batches: RecordBatches) -> Iterator[tuple[str, int, pa.Table]]:
    """(channel, position, log rows) of each row but the heartbeat."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("channel", "position", "packed"))
        for channel, position, packed in zip(*columns, strict=True):
            if packed is not None:
                yield channel, position, ipc_to_table(packed)


class Chains:
    """The opened stateless steps of one query, in one task."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._codecs = {channel: RowCodec(kind) for channel, kind in query.channels.items()}
        self._layouts = {channel: arrow_schema(codec.schema) for channel, codec in self._codecs.items()}
        self._fragment = Fragment(query.graph, query.prefix)
        self._outputs = Outputs(query)
        self._key_bys = {
            stream: query.graph[stream].operator.open(
                Services(stream, query.graph[stream].out, self._fragment.reject, self._fragment.state)
            )
            for stream in query.boundaries
            if stream in query.channels
        }

    def run(self, channel: str, table: pa.Table) -> list[tuple[str, ColumnBatch]]:
        """The records for each sink that the log rows `table` of `channel` give."""
        rows = self._rows(channel, table)
        direct = [(sink, rows) for sink in self._query.direct[channel]]
        self._feed(channel, rows)
        return direct + self._outputs.take(self._fragment)

    def shards(self, channel: str, table: pa.Table, shards: int) -> list[tuple[int, str, ColumnBatch]]:
        """The records for each (shard, stream) that the log rows `table` of `channel` give."""
        rows = self._rows(channel, table)
        parts: list[tuple[int, str, ColumnBatch]] = []
        if channel in self._key_bys:
            batch = self._key_bys[channel](self._batch(channel, rows))
            parts += self._divided(channel, batch, shards)
        self._feed(channel, rows)
        for stream, batches in self._fragment.take().batches.items():
            for batch in batches:
                if stream == DEAD_LETTERS:
                    letters = self._outputs.letters(batch)
                    parts += [(0, stream, letters)] if len(letters) else []
                elif stream in self._query.boundaries:  # what else leaves is for the other query
                    parts += self._divided(stream, batch, shards)
        return parts

    def _rows(self, channel: str, table: pa.Table) -> ColumnBatch:
        layout = self._layouts[channel]
        if table.schema.names != layout.names or table.schema.types != layout.types:
            raise LedgerError(
                f"channel {channel!r}: the log holds {_columns(table.schema)}, but this flow reads "
                f"{_columns(layout)}: run the flow that the devices run, or begin with a new log"
            )
        return from_table(self._codecs[channel].schema, table)

    def _batch(self, channel: str, rows: ColumnBatch) -> Batch:
        values = self._codecs[channel].from_columns(rows.fields)
        return Batch(values, rows.times, rows.names, rows.numbers, rows.paths)

    def _feed(self, channel: str, rows: ColumnBatch) -> None:
        if any(s.id in self._query.prefix for s in self._consumers(channel)):
            self._fragment.feed(channel, self._batch(channel, rows))

    def _consumers(self, channel: str) -> tuple[Any, ...]:
        return () if channel in {DEAD_LETTERS, LATE} else self._query.graph.consumers(channel)

    def _divided(self, stream: str, batch: Batch, shards: int) -> list[tuple[int, str, ColumnBatch]]:
        """A keyed batch by shard, rows in their order."""
        keys = batch.keys or []
        of_key = {key: shard_of(key, shards) for key in set(keys)}
        indexes: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            indexes.setdefault(of_key[key], []).append(index)
        rows = self._outputs.columns(stream, batch)
        if len(indexes) == 1:
            return [(shard, stream, rows) for shard in indexes]
        return [(shard, stream, take(rows, chosen)) for shard, chosen in sorted(indexes.items())]


class Outputs:
    """Turns what a fragment hands out into columns for the sinks of a query."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._codecs: dict[str, RowCodec] = {}
        self._letters = RowCodec(Letter)

    def take(self, fragment: Fragment) -> list[tuple[str, ColumnBatch]]:
        """(sink, records) for all that left `fragment` since it was last asked."""
        found: list[tuple[str, ColumnBatch]] = []
        for sink, batches in fragment.take().batches.items():
            if sink not in self._query.sinks:
                continue  # a stream that the other query takes further
            for batch in batches:
                rows = self.letters(batch) if sink == DEAD_LETTERS else self.columns(sink, batch)
                if len(rows):
                    found.append((sink, rows))
        return found

    def columns(self, step: str, batch: Batch) -> ColumnBatch:
        """Records of the output of `step`, or of the input of the sink `step`."""
        if step not in self._codecs:
            graph = self._query.graph
            made_by = graph[step] if graph[step].out is not None else graph[graph[step].inputs[0].step]
            self._codecs[step] = RowCodec(made_by.out)
        columns = self._codecs[step].to_columns(batch.values)
        return ColumnBatch(columns, batch.times, batch.names, batch.numbers, batch.paths)

    def letters(self, batch: Batch) -> ColumnBatch:
        """Dead letters of the steps that this query owns; the other query hands out the others."""
        columns = self._letters.to_columns(batch.values)
        rows = ColumnBatch(columns, batch.times, batch.names, batch.numbers, batch.paths)
        ours = [index for index, step in enumerate(columns[0]) if step in self._query.owned]
        return rows if len(ours) == len(rows) else take(rows, ours)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
