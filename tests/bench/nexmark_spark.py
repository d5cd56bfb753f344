"""The NEXMark queries on Spark: the flows over a log, and what one would write by hand over parquet.

Both are streaming queries that read the same events to their end, in micro-batches of as many rows, and write
their results into SQLite. By hand a row of the year 2199 moves the watermark past all windows at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from geartrain.graph.graph import Graph
from geartrain.records.event_time import END_OF_TIME
from tests.bench.on_spark import FlowRun, HandTable, fresh, micro_batches_of
from tests.examples.nexmark_reference import Rows
from tests.examples.nexmark_world import KINDS, rows_of
from tests.hosting.hosted_run import INSTANCE
from tests.spark.log_writer import LogWriter

FILE_ROWS, FILES = 20_000, 5
"""Rows of a file or segment, and how many of these a micro-batch reads."""
LAST_US = END_OF_TIME - 31_557_600_000_000
"""The time of the row after all others."""

Timed = Sequence[tuple[int, Any]]


class OnLog:
    """A hosted flow over a log that holds its sources' records; nothing is done before Spark."""

    def __init__(self, spark: SparkSession, folder: Path, graph: Graph, given: Mapping[str, Timed]) -> None:
        self._spark, self._folder, self.graph = spark, folder, graph
        self._log = folder / "log"
        self._log.mkdir()
        kinds = {source: graph[source].out for source in given}
        log = LogWriter(self._log, INSTANCE, kinds, sources=list(given))
        for source, rows in given.items():
            for first in range(0, len(rows), FILE_ROWS):
                part = rows[first : first + FILE_ROWS]
                clock = part[-1][0] if first + FILE_ROWS < len(rows) else END_OF_TIME
                placed = [
                    (value, time, f"d/{source}", number) for number, (time, value) in enumerate(part, first)
                ]
                log.append(source, placed, rows_per_entry=FILE_ROWS, clock=clock)
        log.close()

    def run(self) -> float:
        """Seconds that the micro-batches took from the log's beginning to its end."""
        self._run = FlowRun(self._spark, fresh(self._folder), self.graph, self._log, FILE_ROWS * FILES)
        return self._run.run()

    def results(self) -> Rows:
        """What the last run gave."""
        (sink,) = self.graph.sinks()
        hosted = self._run.hosted
        assert hosted.sinks().keys() == {sink.id}  # nothing late or refused
        return rows_of(self.graph, [value for _, _, value in hosted.records(sink.id)])


class ByHand:
    """Hand-written queries over parquet files in `folder`, one folder a kind of event."""

    def __init__(self, spark: SparkSession, folder: Path, given: Mapping[str, Timed]) -> None:
        self._spark, self._folder = spark.newSession(), folder
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")  # as Spark has it
        self._schemas: dict[str, Any] = {}
        self._runs = 0
        for kind, rows in given.items():
            (folder / kind).mkdir(parents=True)
            records = [msgspec.structs.asdict(value) for _, value in rows]
            records.append(_empty(KINDS[kind]) | {"at_us": LAST_US})
            for first in range(0, len(records), FILE_ROWS):
                table = pa.Table.from_pylist(records[first : first + FILE_ROWS])
                pq.write_table(table, folder / kind / f"{first:09}.parquet")
            self._schemas[kind] = spark.read.parquet(str(folder / kind)).schema

    def stream(self, kind: str) -> DataFrame:
        """The events of a kind, with `time` as the event time."""
        reader = self._spark.readStream.schema(self._schemas[kind]).option("maxFilesPerTrigger", FILES)
        found = reader.parquet(str(self._folder / kind))
        return found.withColumn("time", f.timestamp_micros("at_us")).withWatermark("time", "0 seconds")

    def run(self, query: Callable[[ByHand], DataFrame], finish: str) -> tuple[float, Rows]:
        """Seconds that the micro-batches of a query took to its end, and its rows, which it has written into
        SQLite; finish: what is done with each micro-batch's rows before.
        """
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        with closing(HandTable(folder / "out.sqlite")) as table:

            def keep(batch: DataFrame, number: int) -> None:
                table.write(FINISHES[finish](batch), number)

            writer: Any = query(self).writeStream.foreachBatch(keep)
            running = writer.option("checkpointLocation", str(folder / "spark")).start()
            took = micro_batches_of(running)  # with the one without rows that closes the windows
            running.stop()
            return sum(took), table.rows()


def _empty(kind: Any) -> dict[str, Any]:
    """A row that no query counts."""
    return {name: "" if hint is str else -1 for name, hint in get_type_hints(kind).items()}


def _bids(hand: ByHand) -> DataFrame:
    return hand.stream("bids").where("auction >= 0")


def q0(hand: ByHand) -> DataFrame:
    return _bids(hand).select("auction", "bidder", "price", "channel", "url", "at_us", "extra")


def q1(hand: ByHand) -> DataFrame:
    return _bids(hand).select("auction", "bidder", f.expr("0.908D * price"), "at_us", "extra")


def q2(hand: ByHand) -> DataFrame:
    return _bids(hand).where("auction % 123 = 0").select("auction", "price")


def q3(hand: ByHand) -> DataFrame:
    near = hand.stream("persons").where("state in ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    local = hand.stream("auctions").where("category = 10").select(f.col("id").alias("auction"), "seller")
    return local.join(near, f.expr("seller = id")).select("auction", "name", "city", "state")


def q5(hand: ByHand) -> DataFrame:
    window = f.window("time", "10 seconds", "2 seconds")
    return (
        hand.stream("bids")
        .groupBy("auction", window.alias("w"))
        .count()
        .select("auction", f.unix_micros("w.end").alias("window_end"), "count")
    )


def q7(hand: ByHand) -> DataFrame:
    best = f.max(f.struct("price", "auction", "bidder", "at_us")).alias("b")
    found = hand.stream("bids").groupBy(f.window("time", "10 seconds").alias("w")).agg(best)
    return found.select("b.auction", "b.bidder", "b.price", "b.at_us", f.unix_micros("w.end"))


def q8(hand: ByHand) -> DataFrame:
    window = f.window("time", "10 seconds")
    people = hand.stream("persons").groupBy("id", "name", window.alias("w")).agg(f.count("*"))
    sellers = hand.stream("auctions").groupBy("seller", window.alias("v")).agg(f.count("*"))
    both = people.join(sellers, f.expr("id = seller and w = v"))
    return both.select("id", "name", f.unix_micros("w.start"))


def q11(hand: ByHand) -> DataFrame:
    session = f.session_window("time", "10 seconds").alias("w")
    found = hand.stream("bids").groupBy("bidder", session).count()
    return found.select("bidder", f.unix_micros("w.start"), f.unix_micros("w.end"), "count")


def _most(batch: DataFrame) -> DataFrame:
    """All counts of a window come in one micro-batch: the highest of each."""
    rank = f.rank().over(Window.partitionBy("window_end").orderBy(f.desc("count")))
    return batch.withColumn("rank", rank).where("rank = 1").drop("rank")


FINISHES: dict[str, Callable[[DataFrame], DataFrame]] = {"": lambda batch: batch, "q5": _most}
BY_HAND: dict[str, Callable[[ByHand], DataFrame]] = {
    "q0": q0,
    "q1": q1,
    "q2": q2,
    "q3": q3,
    "q5": q5,
    "q7": q7,
    "q8": q8,
    "q11": q11,
    "q18": q0,
}
CANNOT = {
    "q4": "SQL on a stream cannot: an average without a window over a highest bid without one",
    "q6": "SQL on a stream cannot: no windows of rows",
}
"""Queries that are not to be had by hand, and why."""
