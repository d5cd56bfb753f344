"""The cloud part of a flow on real Spark: the same records as plain Python gives, through stops and damage.

The log is written with the real ledger and segments. The flow keeps what is above zero, and adds it up for
each sensor; a zero and a 13 are dead letters of two of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain.records.event_time import END_OF_TIME
from geartrain.records.letters import Letter
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.spark.checkpoint import remove_checkpoint
from geartrain_cloud.spark.compile import KEYED, compile_queries
from geartrain_cloud.spark.status import query_clock
from tests.spark.cloud import Cloud
from tests.spark.flows import Reading, expected_sums, sensors


def assert_exact(cloud: Cloud, records: Sequence[tuple[Reading, int, str, int]]) -> None:
    readings = [record[0] for record in records]
    sums = expected_sums(readings)
    assert cloud.table("kept") == [{"sensor": r.sensor, "value": r.value} for r in readings if r.value > 0]
    assert cloud.table("each_sum") == [{"sensor": s.sensor, "count": s.count, "total": s.total} for s in sums]
    last = {s.sensor: s for s in sums}
    found = {row["sensor"]: (row["count"], row["total"]) for row in cloud.table("last_sum")}
    assert found == {s.sensor: (s.count, s.total) for s in last.values()}
    refused = sorted((row["step"], row["reason"]) for row in cloud.table("dead_letters"))
    zeros, thirteens = (sum(r.value == v for r in readings) for v in (0.0, 13.0))
    assert (
        refused
        == [("adding", "ValueError: thirteen is refused")] * thirteens
        + [("positive", "ValueError: zero has no sign")] * zeros
    )


def test_tables_equal_plain_python_through_a_stop_a_lost_commit_and_a_lost_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    cloud = Cloud(spark, tmp_path, rows_max=700)
    records = sensors(1, 2_000)
    cloud.writer.append("readings", records[:900], rows_per_entry=50)
    cloud.run()
    assert_exact(cloud, records[:900])

    cloud.lose_the_last_commit()
    letter = (Letter("readings", "not_a_record", "prices.csv:7: no number", b"x"), 5, "device-0/readings", 7)
    cloud.writer.append("_dead_letters", [letter])
    assert [one.writer.repeated for one in cloud.run(again=True).values()] == [1, 1]
    assert len(cloud.table("dead_letters")) == 1 + sum(r[0].value in {0.0, 13.0} for r in records[:900])

    cloud.writer.append("readings", records[900:], rows_per_entry=50, clock=END_OF_TIME)
    cloud.writer.end()
    cloud.run()
    held = SqliteTables(cloud.tables_file)
    for query in compile_queries(cloud.plan):
        assert query_clock(cloud.reader, query, held.positions(query.name)) == END_OF_TIME
    held.close()
    cloud_letters = [row for row in cloud.table("dead_letters") if row["step"] == "readings"]
    assert [row["reason"] for row in cloud_letters] == ["prices.csv:7: no number"]
    kept = [{"sensor": r[0].sensor, "value": r[0].value} for r in records if r[0].value > 0]
    assert cloud.table("kept") == kept

    remove_checkpoint(cloud.checkpoints() / KEYED)
    with pytest.raises(TableError, match="its checkpoint is not there: bring the checkpoint back"):
        cloud.run([KEYED])
    cloud.writer.close()
