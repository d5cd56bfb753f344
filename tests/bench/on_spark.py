"""What the works on Spark share: queries of a flow and queries by hand over one log, in one session, timed.

Most of the work is done in other processes (Java, Python workers), so it is the clock that counts; the
contenders of a work run in one session, in turns, after a round that is not counted: the first micro-batches
of a session are several times slower, because Java still interprets what it later compiles.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geartrain import Flow
from geartrain.planning import make_plan
from geartrain.schema import ColumnBatch
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.columns import COLUMNS_NAME
from geartrain_cloud.spark.compile import compile_queries
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.streams import LogInput, query_frame
from tests.bench.harness import SIZE, Contender

_SPARKS = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}

ForEach = Callable[[DataFrame, int], None]


def run_to_end(frame: DataFrame, sink: ForEach, checkpoint: Path) -> list[float]:
    """Seconds of each micro-batch of a query, all that is there now being read; `checkpoint` may have run."""
    writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query: Any = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    took = {one["batchId"]: one["durationMs"] for one in query.recentProgress}
    return [took[batch]["triggerExecution"] / 1_000 for batch in sorted(took) if "addBatch" in took[batch]]


def warmed(contenders: Mapping[str, Contender]) -> Mapping[str, Contender]:
    """The contenders, after one run of each; at the size of the proofs nothing is timed, so none is run."""
    if SIZE > 0.01:
        for contender in contenders.values():
            contender()
    return contenders


@contextmanager
def as_spark_has_it(session: SparkSession) -> Iterator[None]:
    """For queries by hand, what a session of ours sets for its own rows and clock is Spark's again, so that a
    query ends with the micro-batch without rows which lets its windows go.
    """
    ours = {key: str(session.conf.get(key)) for key in _SPARKS}
    for key, value in _SPARKS.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in ours.items():
            session.conf.set(key, value)


@dataclass
class FlowRun:
    """One query of a flow, all of whose steps are in the cloud, over a log, and what its sinks were given."""

    session: SparkSession
    folder: Path
    flow: Flow
    name: str
    log: LogInput
    sinks: dict[str, list[ColumnBatch]] = field(default_factory=dict)
    micro_batches: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds that the micro-batches took until the log's end; a second run goes on from the first."""
        queries = {query.name: query for query in compile_queries(make_plan(self.flow.graph(), "cloud"))}
        checkpoint = open_checkpoint(self.folder, queries[self.name], SHARDS)
        frame = query_frame(self.session, queries[self.name], self.log, checkpoint)
        self.micro_batches = run_to_end(frame, self._take, checkpoint.location)
        return sum(self.micro_batches)

    def _take(self, frame: DataFrame, _: int) -> None:
        packed = frame.toArrow()
        for sink, raw in zip(*(packed.column(n).to_pylist() for n in ("sink", "packed")), strict=True):
            self.sinks.setdefault(sink, []).append(unpack(raw))

    def rows(self, sink: str) -> list[tuple[Any, ...]]:
        """The fields of the records that a sink was given."""
        return [row for batch in self.sinks.get(sink, ()) for row in zip(*batch.fields, strict=True)]


@dataclass
class HandRun:
    """A query by hand over columns of a channel of the same log, in the same micro-batches."""

    session: SparkSession
    folder: Path
    log: LogInput
    flow: str
    channel: str
    columns: Sequence[str]
    make: Callable[[DataFrame], DataFrame]
    tables: list[pa.Table] = field(default_factory=list)
    micro_batches: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds that the micro-batches took until the log's end."""
        places = {"log": str(self.log.folder), "flow": self.flow, "channel": self.channel}
        options = places | {"columns": json.dumps(list(self.columns)), "rows_max": str(self.log.rows_max)}
        source = self.session.readStream.format(COLUMNS_NAME).options(**options).load()
        self.micro_batches = run_to_end(self.make(source), self._take, self.folder)
        return sum(self.micro_batches)

    def _take(self, frame: DataFrame, _: int) -> None:
        self.tables.append(frame.toArrow())

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows that came out."""
        return [tuple(row.values()) for table in self.tables for row in table.to_pylist()]


def fresh(folder: Path) -> Path:
    """A place for one more checkpoint."""
    return folder / f"checkpoint-{time.monotonic_ns()}"
