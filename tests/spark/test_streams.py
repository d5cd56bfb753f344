"""Both queries on Spark, stopped in mid-run, and what is relied on of Spark itself.

tests/spark/test_queries.py proves what follows where a checkpoint is lost.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.letters import Letter
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.checkpoint import Checkpoint, open_checkpoint
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.shards import shard_labels
from geartrain_cloud.spark.status import describe
from geartrain_cloud.spark.streams import LogInput, RunningQuery, dropped_rows
from tests.spark.flows import Reading, expected_sums, sums_flow
from tests.spark.log_writer import LogWriter
from tests.waiting import WAIT_S

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


def readings(first: int, count: int) -> list[tuple[Reading, int, str, int]]:
    rng = random.Random(first)
    found = []
    for number in range(first, first + count):
        reading = Reading(f"s{rng.randrange(300)}", float(rng.randrange(-5, 60)))
        found.append((reading, T0 + number * SECOND // 10, "device-1/readings", number))
    return found


@dataclass
class Place:
    """One flow's log, tables and checkpoints."""

    spark: SparkSession
    folder: Path
    log: LogWriter
    tables: Tables
    queries: tuple[Query, ...]

    def checkpoint(self, query: Query) -> Checkpoint:
        return open_checkpoint(self.folder / "checkpoints" / query.name, query, 4)

    def start(self, query: Query, rows_max: int) -> RunningQuery:
        log = LogInput(self.log.folder, rows_max)
        return RunningQuery(self.spark, query, self.checkpoint(query), log, self.tables, letters_percent=100)

    def position(self, query: Query) -> int:
        return self.tables.positions(query.name).get("0", 0)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    plan = make_plan(sums_flow().graph(), "cloud")
    tables = open_tables(plan.graph, tmp_path / "tables.sqlite")
    log = LogWriter(tmp_path / "log", "sums", {"readings": Reading, "_dead_letters": Letter, "_late": Letter})
    return Place(spark, tmp_path, log, tables, compile_queries(plan))


def wait(until: Callable[[], bool], running: Sequence[RunningQuery]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, "it takes too long"
        for one in running:
            one.check()
        time.sleep(0.05)
    for one in running:
        one.settle()
        one.check()


def test_queries_stopped_in_mid_run_go_on_exactly(place: Place) -> None:
    records = readings(0, 8_000)
    place.log.append("readings", records[:300], rows_per_entry=1, clock=records[299][1])
    place.log.append("readings", records[300:4_000], rows_per_entry=97, clock=records[3_999][1])
    running = [place.start(query, 1_000) for query in place.queries]
    wait(lambda: all(place.position(query) > 310 for query in place.queries), running)
    for one in running:
        one.stop()
    stopped = [place.position(query) for query in place.queries]
    place.log.append("readings", records[4_000:], rows_per_entry=250, clock=records[-1][1])
    place.log.end()
    end = LogReader(place.log.folder).positions("sums")["0"]
    assert max(stopped) < end

    running = [place.start(query, 4_000) for query in place.queries]
    wait(lambda: all(place.position(query) == end for query in place.queries), running)
    status = describe(LogReader(place.log.folder), place.tables, running)
    dropped = [dropped_rows(p) for p in running[1]._handle.recentProgress if p["stateOperators"]]
    for one in running:
        one.stop()
    checkpoints = [path for path in (place.folder / "checkpoints").rglob("*") if path.is_file()]
    assert [path for path in checkpoints if path.stat().st_mode & 0o077] == []
    values = [reading for reading, *_ in records]
    expected = expected_sums(values)
    each = [(r["sensor"], r["count"], r["total"]) for r in rows(place.tables.own.place, "each_sum")]
    assert each == sorted((s.sensor, s.count, s.total) for s in expected)
    kept = [(r["sensor"], r["value"]) for r in rows(place.tables.own.place, "kept")]
    assert kept == sorted((r.sensor, r.value) for r in values if r.value > 0)
    assert dropped
    assert set(dropped) == {0}
    assert status["clock"] == END_OF_TIME
    assert status["queries"]["keyed"]["log_rows"] == 8_000
    assert status["queries"]["keyed"]["positions"] == {"0": end}
    assert status["records"]["each"] == len(expected)
    assert status["records"]["_dead_letters"] == sum(r.value in {0.0, 13.0} for r in values)


def test_spark_leaves_ctrl_c_to_whoever_had_it(spark: SparkSession) -> None:
    assert spark.version.startswith("4.")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_labels_of_shards_are_what_spark_hashes_evenly(spark: SparkSession) -> None:
    for partitions in (2, 3):
        labels = shard_labels(6, partitions)
        frame = spark.createDataFrame([(label,) for label in labels], "shard int")
        found = frame.select(expr(f"pmod(hash(shard), {partitions})")).collect()
        assert [row[0] for row in found] == [shard % partitions for shard in range(6)]


def test_the_checkpoint_says_what_its_offsets_are(place: Place) -> None:
    """The form of Spark's offset log, which the sink reads its positions from."""
    place.log.append("readings", readings(0, 10))
    query = place.queries[0]
    running = place.start(query, 100)
    wait(lambda: place.position(query) == 1, [running])
    running.stop()
    checkpoint = place.checkpoint(query)
    lines = (checkpoint.location / "offsets" / "0").read_text().splitlines()
    assert (len(lines), lines[0]) == (3, "v1")
    assert json.loads(lines[2]) == checkpoint.positions(0) == {"0": 1}
