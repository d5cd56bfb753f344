"""What the works on Spark share: hosted flows and queries by hand over one log, in one session, timed.

Most of the work is done in other processes (Java, Python workers), so it is the clock that counts; the
contenders of a work run in one session, in turns, after a round that is not counted: the first micro-batches
of a session are several times slower, because Java still interprets what it later compiles.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from geartrain import Flow
from geartrain.graph.graph import Graph
from geartrain_cloud.hosting.wanted import SLOTS
from geartrain_cloud.spark.columns import COLUMNS_NAME
from tests.bench.harness import SIZE, Contender
from tests.hosting.hosted_run import INSTANCE, HostedRun

PATIENCE_S = 3_600.0
"""What is measured may take long."""
_SPARKS = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}

ForEach = Callable[[DataFrame, int], None]


def run_to_end(frame: DataFrame, sink: ForEach, checkpoint: Path) -> list[float]:
    """Seconds of each micro-batch of a query, all that is there now being read."""
    writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query: Any = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return micro_batches_of(query)


def micro_batches_of(query: Any) -> list[float]:
    """Seconds of each micro-batch of a query that has run all there is, in order."""
    if query.isActive:
        query.processAllAvailable()  # until the last one is reported, too
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


class FlowRun:
    """A flow, all of whose steps but sources are in the cloud, on a host of its own over a copy of a log."""

    def __init__(
        self, session: SparkSession, folder: Path, flow: Flow | Graph, log: Path, rows_max: int
    ) -> None:
        """log: of the instance `INSTANCE`; rows_max: of a micro-batch."""
        graph = flow if isinstance(flow, Graph) else flow.graph()
        self.session = session
        self.hosted = HostedRun(session, folder, graph, rows_max=rows_max, slots=SLOTS)
        self.micro_batches: list[float] = []
        """Seconds of each."""
        self.hosted.log.close()
        shutil.rmtree(self.hosted.log.folder)
        shutil.copytree(log, self.hosted.log.folder)

    def run(self) -> float:
        """Seconds that the micro-batches took from the log's beginning to its end."""
        with self.hosted.hosting() as hosting:
            hosting.through(INSTANCE, wait_s=PATIENCE_S)
            # Beside a flow with a query to itself there is the one that others would share.
            self.micro_batches = max(map(micro_batches_of, self.session.streams.active), key=sum)
        return sum(self.micro_batches)

    def rows(self, sink: str) -> list[tuple[Any, ...]]:
        """The fields of the records in the table of a sink, in canonical order."""
        batches = self.hosted.sinks().get(sink, [])
        return [row for batch in batches for row in zip(*batch.fields, strict=True)]


class HandTable:
    """A table of SQLite, written as durably as ours, one transaction a micro-batch."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._insert = ""

    def write(self, frame: DataFrame, _: int) -> None:
        """Add the rows of a micro-batch."""
        table = frame.toArrow()
        if not self._insert:
            self._database.execute(
                f"CREATE TABLE out ({', '.join(f'c{n}' for n in range(table.num_columns))})"
            )
            self._insert = f"INSERT INTO out VALUES ({', '.join('?' * table.num_columns)})"
        columns = [column.to_pylist() for column in table.columns]
        self._database.executemany(self._insert, zip(*columns, strict=True))
        self._database.commit()

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows, in the order in which they came."""
        return self._database.execute("SELECT * FROM out ORDER BY rowid").fetchall() if self._insert else []

    def close(self) -> None:
        """Close the file."""
        self._database.close()


@dataclass
class HandRun:
    """A query by hand over columns of a channel of the same log, in the same micro-batches, into a table."""

    session: SparkSession
    folder: Path
    log: Path
    rows_max: int
    channel: str
    columns: Sequence[str]
    make: Callable[[DataFrame], DataFrame]
    found: list[tuple[Any, ...]] = field(default_factory=list)
    micro_batches: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds that the micro-batches took until the log's end."""
        places = {"log": str(self.log), "flow": INSTANCE, "channel": self.channel}
        options = places | {"columns": json.dumps(list(self.columns)), "rows_max": str(self.rows_max)}
        source = self.session.readStream.format(COLUMNS_NAME).options(**options).load()
        self.folder.mkdir()
        with closing(HandTable(self.folder / "out.sqlite")) as table:
            self.micro_batches = run_to_end(self.make(source), table.write, self.folder / "spark")
            self.found = table.rows()
        return sum(self.micro_batches)

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows that came out."""
        return self.found


def fresh(folder: Path) -> Path:
    """A place for one more checkpoint."""
    return folder / f"checkpoint-{time.monotonic_ns()}"
