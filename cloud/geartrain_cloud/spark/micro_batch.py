"""The end of a micro-batch: its packed rows, collected and written to the tables with its end positions.

It stands last on a record's path inside Spark, as the function of `foreachBatch`.

Guarantees: rows and positions of a micro-batch are one transaction. Spark may ask again for a micro-batch
that the tables hold, because its state may not have been saved: it is run again, but not written again. What
was written stays, even where its dead letters then stop the query.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from geartrain.graph.graph import DEAD_LETTERS, LATE, STATE
from geartrain.schema import ColumnBatch
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.log.queries import Registration
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.source import FLUSHED


@dataclass(frozen=True, slots=True)
class Written:
    """A micro-batch that was run: its number (-1 for none yet), and the seconds it took."""

    batch_id: int = -1
    seconds: float = 0.0


class MicroBatchWriter:
    """Called by Spark for each micro-batch of one query, from a thread of its own."""

    def __init__(
        self, checkpoint: Checkpoint, tables: Tables, log: LogReader, query: Query, breaker: Breaker
    ) -> None:
        flow = query.graph.name
        self._checkpoint, self._tables, self._log, self._flow = checkpoint, tables, log, flow
        self._channels, self._breaker = frozenset(query.channels), breaker
        self._registration = Registration(log.folder, checkpoint.query, checkpoint.identity, flow)
        self.last = Written()
        self.repeated = 0
        """Micro-batches that were run again and not written, because the tables held them."""
        self.failure: Exception | None = None
        """What stopped the query here; Spark itself would only report a trace."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run and write micro-batch `batch_id`; raises `TableError`, `QueryError` or `LedgerError`."""
        try:
            self._write(frame, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        start = time.monotonic()
        query = self._checkpoint.query
        # Spark asks for this one, so it has committed the one before, and never runs that again.
        self.release(batch_id - 1)
        held, positions = self._tables.positions(query), self._checkpoint.positions(batch_id)
        packed = frame.toArrow()
        rows: dict[str, list[ColumnBatch]] = {}
        columns = (packed.column(name).to_pylist() for name in ("sink", "packed"))
        for sink, raw in zip(*columns, strict=True):
            rows.setdefault(sink, []).append(unpack(raw))
        read = self._rows_read(held, positions)
        if self._checkpoint.is_catching_up(positions):
            written = self._tables.catch_up(query, batch_id, positions, rows, sum(read.values()))
        else:
            written = self._tables.write(query, batch_id, positions, rows, sum(read.values()))
        self.last = Written(batch_id, time.monotonic() - start)
        if written:
            self._count_letters(read, rows.get(DEAD_LETTERS, []))
        else:
            self.repeated += 1

    def _rows_read(self, held: Mapping[str, int], positions: Mapping[str, int]) -> Counter[str]:
        """Rows of the query's channels between two positions, by channel."""
        read: Counter[str] = Counter()
        for key, position in _of_log(positions).items():
            read.update(self._log.counts(self._flow, key, held.get(key, 0), position))
        return Counter({channel: count for channel, count in read.items() if channel in self._channels})

    def _count_letters(self, read: Counter[str], letters: Sequence[ColumnBatch]) -> None:
        records = sum(count for channel, count in read.items() if channel not in (DEAD_LETTERS, LATE, STATE))
        made = sum(map(len, letters)) - read[DEAD_LETTERS]  # those of devices have come as they were
        newest = next(
            (f"step {b.fields[0][-1]!r}: {b.fields[2][-1]}" for b in reversed(letters) if len(b)), ""
        )
        self._breaker.count(records, made, newest)

    def release(self, batch_id: int) -> None:
        """Let the log go up to the end of micro-batch `batch_id`, which Spark has committed."""
        self._registration.commit(_of_log(self._checkpoint.positions(batch_id)))


def _of_log(positions: Mapping[str, int]) -> dict[str, int]:
    return {key: position for key, position in positions.items() if key != FLUSHED}
