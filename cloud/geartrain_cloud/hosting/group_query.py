"""The streaming query of a group: its frame, its start, and its starts again after a failure.

Between a group and Spark. Guarantees: its name holds the group, so groups stand beside each other in one
session. One that fails too often without naming a flow stays down, with the reason.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from geartrain.printable import printable
from geartrain_cloud.hosting.group_file import GroupIdentity
from geartrain_cloud.hosting.marks import clear_marks
from geartrain_cloud.hosting.places import GroupPlaces
from geartrain_cloud.hosting.source import HOST_ROWS, HostSource
from geartrain_cloud.hosting.stage import HostStage
from geartrain_cloud.hosting.versions import sink_labels
from geartrain_cloud.hosting.writer import HostWriter
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.error_texts import has_lost_state, is_spark_error, root_cause, waits_for_data
from geartrain_cloud.spark.errors import QueryError

_log = logging.getLogger("host")

RESTARTS_MAX = 5
"""Restarts of a query that failed and named no flow, within `RESTARTS_WITHIN_S`."""
RESTARTS_WITHIN_S = 600.0


class GroupQuery:
    """The query of one group; `start` it, and `start_again` where it is not active any more."""

    def __init__(
        self,
        session: SparkSession,
        name: str,
        made: GroupIdentity,
        checkpoint: Checkpoint,
        host: Path,
        places: GroupPlaces,
        log: Path,
    ) -> None:
        """name: the group's; made: what the group was made for, which a query that starts is for; host: the
        host's folder; log: ingest's.
        """
        self._session, self.name, self.made, self._checkpoint = session, name, made, checkpoint
        self._host, self._places, self._log = host, places, log
        self._handle: StreamingQuery | None = None
        self.restarts: list[float] = []
        """When it was started again, monotonic seconds: those of the last `RESTARTS_WITHIN_S`."""

    @property
    def is_started(self) -> bool:
        """Whether it was started and not closed since; it may have failed meanwhile."""
        return self._handle is not None

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return self._handle is not None and self._handle.isActive

    @property
    def is_beginning(self) -> bool:
        """Whether it was started and has neither run a micro-batch nor seen that there is none to run."""
        if self._handle is None or not self._handle.isActive or self._handle.lastProgress is not None:
            return False
        return not waits_for_data(str(self._handle.status["message"]))

    def start(self, writer: HostWriter) -> None:
        """Start it; raises Spark's errors and `QueryError`."""
        clear_marks(self._places.marks)
        self._checkpoint.clear_drafts()
        self._handle = (
            self._frame()
            .writeStream.queryName(f"host_{self.name}")
            .foreachBatch(writer)
            .option("checkpointLocation", str(self._checkpoint.location.absolute()))
            .start()
        )

    def _frame(self) -> DataFrame:
        self._session.dataSource.register(HostSource)
        rows = (
            self._session.readStream.format(HostSource.name())
            .option("log", str(self._log.absolute()))
            .option("host", str(self._host.absolute()))
            .option("group", self.name)
            .option("readers", self.made.partitions)
            .load()
        )
        sinks = sink_labels(self.made.partitions)
        for number in range(1, self.made.stages + 1):
            stage = HostStage(number, self._host.absolute(), self.name, sinks)
            rows = rows.groupBy("shard").transformWithState(stage, HOST_ROWS, "Append", "None")
        return rows.selectExpr("flow", "stream AS sink", "packed")

    def start_again(self, writer: HostWriter) -> None:
        """Start it after it has failed; raises `QueryError` where it did so too often."""
        why = self.why(writer)
        now = time.monotonic()
        self.restarts = [at for at in self.restarts if now - at < RESTARTS_WITHIN_S] + [now]
        if len(self.restarts) > RESTARTS_MAX:
            raise QueryError(f"group {self.name} stopped: {why}") from writer.failure
        _log.warning("group %s is started again: %s", self.name, printable(why))
        writer.failure = None
        self.start(writer)

    @property
    def has_lost_state(self) -> bool:
        """Whether it failed since Spark cannot load what it keeps."""
        return has_lost_state(self._trace())

    def why(self, writer: HostWriter) -> str:
        """Why it failed."""
        failure = writer.failure
        if failure is not None and not is_spark_error(failure):
            return str(failure)
        trace = self._trace()
        return root_cause(trace) if trace else "it was stopped from outside"

    def _trace(self) -> str:
        error = self._handle.exception() if self._handle is not None else None
        java = getattr(getattr(error, "_cause", None), "_stackTrace", "")
        return "\n".join(str(part) for part in (error, java) if part)

    def stop(self) -> None:
        """Stop it; what it was doing is done again after the next start."""
        if self._handle is not None:
            self._handle.stop()

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self._handle = None
