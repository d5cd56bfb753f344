"""Queries of release 0.2 that go on with a log that was migrated, on the tests' one session."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain.planning import Plan
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.spark.compile import compile_queries
from geartrain_cloud.spark.errors import RefusedError
from geartrain_cloud.spark.restore import restored_checkpoint, sound_checkpoint
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.streams import LogInput, RunningQuery
from tests.waiting import WAIT_S


def read_on(spark: SparkSession, plan: Plan, folder: Path, rows_max: int = 50_000) -> None:
    """Make the checkpoints in `folder` again, and read the log to its end; without that they are refused."""
    reader, checkpoints = LogReader(folder / "log"), folder / "driver" / "checkpoints"
    tables = open_tables(plan.graph, folder / "tables.sqlite")
    running: list[RunningQuery] = []
    newest, deadline = reader.positions(plan.graph.name), time.monotonic() + WAIT_S
    try:
        for query in compile_queries(plan):
            place = checkpoints / query.name
            with pytest.raises(RefusedError, match=r"is of release 0\.2, .* --restore after gear log migr"):
                sound_checkpoint(query, place, tables, SHARDS)
            checkpoint = restored_checkpoint(query, place, tables, SHARDS, reader)
            assert checkpoint.restored == (reader.renumbered(plan.graph.name)[1],)
            log = LogInput(reader.folder, rows_max=rows_max)
            running.append(RunningQuery(spark, query, checkpoint, log, tables, letters_percent=100))
        while any(tables.positions(one.query.name) != newest for one in running):
            assert time.monotonic() < deadline, "it takes too long"
            for one in running:
                one.check()
            time.sleep(0.1)
    finally:
        for one in running:
            one.stop()
        tables.close()
