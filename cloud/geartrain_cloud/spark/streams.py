"""A query as Spark runs it: reader, stage 0, for each further stage a shuffle and its fragments, and the
writer of its micro-batches.

It stands between the compiled queries and Spark's engine. Guarantees: the clock of the log reaches every
stage as a row like any other. So Spark has no watermark by which it could drop rows, and drops none. A query
keeps the shards and the checkpoint with which it began.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.spark.breaker import LETTERS_PERCENT, Breaker
from geartrain_cloud.spark.chains import routed_rows, stateless_rows
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.embedded import EmbeddedFragment
from geartrain_cloud.spark.error_texts import has_lost_process, has_lost_state, is_spark_error, root_cause
from geartrain_cloud.spark.errors import BreakerError, QueryError
from geartrain_cloud.spark.keyed_stage import KeyedStage
from geartrain_cloud.spark.micro_batch import MicroBatchWriter
from geartrain_cloud.spark.native import native_frame, window_layout, window_rows
from geartrain_cloud.spark.reading import Reading, source_of
from geartrain_cloud.spark.rows import ROUTED_ROWS, SINK_ROWS
from geartrain_cloud.spark.session import NATIVE_SETTINGS
from geartrain_cloud.spark.shards import shard_labels
from geartrain_cloud.spark.whole import note_torn

RESTARTS_MAX = 5
"""How often a query is started again in one run of the driver."""

_SETTLE_S = 10.0
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class LogInput:
    """Where a query reads: the log's folder, and how many rows of each partition one micro-batch takes, those
    of channels counted that it does not read.
    """

    folder: Path
    rows_max: int = 50_000


def query_frame(session: SparkSession, query: Query, log: LogInput, checkpoint: Checkpoint) -> DataFrame:
    """The streaming frame of `query`, rows of `SINK_ROWS`."""
    if query.native:
        session = session.newSession()
        for key, value in NATIVE_SETTINGS.items():
            session.conf.set(key, value)
    # Without state nothing has to be made again: the query begins where the stores stand.
    begin = checkpoint.restored[0] if checkpoint.restored and len(query.stages) == 1 else {}
    partitions = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    flushed = query.sources if query.native else ()
    labels = shard_labels(checkpoint.shards, partitions)
    source = source_of(query.name, *_reading(query, labels))
    session.dataSource.register(source)
    rows = (
        session.readStream.format(source.name())
        .option("log", str(log.folder.absolute()))
        .option("flow", query.graph.name)
        .option("channels", json.dumps(sorted(query.channels)))
        .option("rows_max", log.rows_max)
        .option("readers", partitions)
        .option("flush", json.dumps(sorted(flushed)))
        .option("begin", json.dumps(dict(begin)))
        .option("stops", json.dumps([dict(one) for one in checkpoint.restored]))
        .load()
    )
    if query.native:
        return native_frame(rows, query)
    if len(query.stages) == 1:
        return rows
    for stage in query.stages[1:]:
        fragment = KeyedStage(EmbeddedFragment(query, stage.number, labels))
        rows = rows.groupBy("shard").transformWithState(fragment, ROUTED_ROWS, "Append", "None")
    return rows.selectExpr("stream AS sink", "packed")


def _reading(query: Query, labels: Sequence[int]) -> tuple[Reading, str]:
    """What runs where the log is read, and the columns that it puts out."""
    if query.native:
        return window_rows(query), window_layout(query)
    if len(query.stages) == 1:
        return stateless_rows(query), SINK_ROWS
    return routed_rows(query, labels), ROUTED_ROWS


class RunningQuery:
    """A query that was started."""

    def __init__(
        self,
        session: SparkSession,
        query: Query,
        checkpoint: Checkpoint,
        log: LogInput,
        tables: Tables,
        letters_percent: float = LETTERS_PERCENT,
    ) -> None:
        """Start it; raises `TableError` where checkpoint and tables do not belong together, `BreakerError`
        where its dead letters have stopped it.
        """
        self.query, self._checkpoint = query, checkpoint
        breaker = Breaker(query.name, checkpoint.folder, letters_percent)
        self.writer = MicroBatchWriter(checkpoint, tables, LogReader(log.folder), query, breaker)
        self.restarts = 0
        self._watched = -1
        self._location = str(checkpoint.location.absolute())
        tables.attach(query.name, checkpoint.identity, has_run=checkpoint.has_run)
        self._frame = query_frame(session, query, log, checkpoint)
        self._handle = self._start()

    def _start(self) -> StreamingQuery:
        stream = self._frame.writeStream.queryName(self.query.name).foreachBatch(self.writer)
        return stream.option("checkpointLocation", self._location).start()

    def check(self) -> None:
        """Raise `QueryError` if it has failed, or if Spark has dropped rows since it was last asked.

        A query may fail because a Python process of Spark's did not start in time, or because the one that
        speaks for the log was killed. Such a query is started again, a few times.
        """
        if not self._handle.isActive:
            why = self._why()
            if has_lost_process(self.trace()) and self.restarts < RESTARTS_MAX:
                self.restarts += 1
                self.writer.failure = None
                self._watched = -1  # a micro-batch that is run again is reported again
                self._handle = self._start()
                return
            if isinstance(self.writer.failure, BreakerError):
                raise self.writer.failure
            if has_lost_state(trace := self.trace()):
                raise note_torn(self._checkpoint, root_cause(trace)) from self.writer.failure
            raise QueryError(f"query {self.query.name!r} stopped: {why}") from self.writer.failure
        if len(self.query.stages) > 1 or self.query.native:
            self._watch()

    def _watch(self) -> None:
        last = self._handle.lastProgress
        if last is None or _newest(last) <= self._watched:
            return
        alone = _has_run(last) and last["batchId"] == self._watched + 1
        for progress in [last] if alone else self._handle.recentProgress:
            if _has_run(progress) and progress["batchId"] > self._watched:
                self._watched = progress["batchId"]
                dropped = dropped_rows(progress)
                if dropped:
                    raise QueryError(
                        f"query {self.query.name!r}, micro-batch {self._watched}: Spark dropped {dropped} "
                        "rows as too late, which must never happen: keep log and checkpoint and report this"
                    )

    def settle(self) -> None:
        """Wait until Spark has reported on the last micro-batch; raises `QueryError` after 10 s."""
        last = self.writer.last.batch_id
        deadline = time.monotonic() + _SETTLE_S
        while self._handle.isActive and last >= 0:
            progress = self._handle.lastProgress
            if progress is not None and _newest(progress) >= last:
                return
            if time.monotonic() > deadline:
                raise QueryError(
                    f"query {self.query.name!r} wrote micro-batch {last}, but Spark did not report it within "
                    f"{_SETTLE_S:.0f} s: run it again, it goes on from there"
                )
            time.sleep(_PAUSE_S)

    def _why(self) -> str:
        if self.writer.failure is not None and not is_spark_error(self.writer.failure):
            return str(self.writer.failure)
        trace = self.trace()
        return root_cause(trace) if trace else "it was stopped from outside"

    def trace(self) -> str:
        """The whole of what Spark says of the failure, with Java's own words; empty for none."""
        failure, written = self._handle.exception(), self.writer.failure
        java = getattr(getattr(failure, "_cause", None), "_stackTrace", "")
        said = written if written is not None and is_spark_error(written) else ""
        return "\n".join(str(part) for part in (failure, said, java) if part)

    def stop(self) -> None:
        """Stop it; what it was doing is done again after the next start."""
        self._handle.stop()


def _has_run(progress: Any) -> bool:
    """Whether a progress report is of a micro-batch that was run; an idle query reports on the next one."""
    return "addBatch" in progress["durationMs"]


def _newest(progress: Any) -> int:
    """The number of the newest micro-batch that was run when `progress` was reported, -1 for none."""
    return int(progress["batchId"]) if _has_run(progress) else int(progress["batchId"]) - 1


def dropped_rows(progress: Any) -> int:
    """Rows that Spark's stateful operators dropped by their watermark, of one progress report."""
    return sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])
