"""The driver tells the log what its queries are done with: one micro-batch behind, then all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from geartrain.planning import make_plan
from geartrain_cloud.log.queries import registered
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import QueryProgress
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.checkpoint import Checkpoint, open_checkpoint
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.config import read_config
from geartrain_cloud.spark.driver import Driver
from geartrain_cloud.spark.micro_batch import MicroBatchWriter
from geartrain_cloud.spark.shards import SHARDS
from tests.spark.flows import sums_flow
from tests.spark.test_driver import DriverProcess, make_log
from tests.spark.test_streams import readings


class NoRows:
    """The frame of a micro-batch that gave nothing."""

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({"sink": pa.array([], pa.string()), "packed": pa.array([], pa.binary())})


FRAME = cast(DataFrame, NoRows())


def asked(checkpoint: Checkpoint, batch_id: int, positions: dict[str, int]) -> None:
    """What Spark writes before it runs a micro-batch."""
    folder = checkpoint.location / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch_id)).write_text("v1\n{}\n" + json.dumps(positions))


def known(folder: Path, query: Query, checkpoint: Checkpoint) -> QueryProgress:
    (found,) = [one for one in registered(folder) if one.key == "0"]
    assert found.name == f"{query.name}@{checkpoint.identity[:12]}"
    return found


def test_log_is_let_go_one_micro_batch_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = make_log(tmp_path)
    log.append("readings", readings(0, 40), rows_per_entry=1)
    plan = make_plan(sums_flow().graph(), "cloud")
    query = compile_queries(plan)[-1]
    checkpoint = open_checkpoint(tmp_path / "checkpoint", query, SHARDS)
    tables = open_tables(plan.graph, tmp_path / "tables.sqlite")
    tables.attach(query.name, checkpoint.identity, has_run=False)
    breaker = Breaker(query.name, checkpoint.folder)
    writer = MicroBatchWriter(checkpoint, tables, LogReader(log.folder), query, breaker)
    for batch_id, position in ((0, 10), (1, 25), (2, 40)):
        asked(checkpoint, batch_id, {"0": position})
        writer(FRAME, batch_id)
        before = {0: 0, 1: 10, 2: 25}[batch_id]
        assert sum(one.position for one in registered(log.folder)) == before
    writer.release(2)
    assert known(log.folder, query, checkpoint).position == 40
    log.close()
    (log.folder / "ledger.sqlite").rename(tmp_path / "away")
    writer.release(1)
    assert "there is no ledger" in caplog.text
    tables.close()


def test_reset_takes_the_queries_out(tmp_path: Path) -> None:
    make_log(tmp_path).close()
    config = read_config(DriverProcess(tmp_path).config)
    driver: Any = Driver(config, config.plan())
    driver.open_tables().close()
    for query in driver._queries:
        checkpoint = open_checkpoint(driver._folder(query), query, SHARDS)
        driver._registration(checkpoint).register(["0"])
    assert {one.name.partition("@")[0] for one in registered(config.log)} == {"stateless", "keyed"}
    Driver(config, config.plan(), reset=True).open_tables().close()
    assert registered(config.log) == []
