"""The cloud part of a flow as the driver holds it, with a log of its own that a test writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain import Flow
from geartrain.planning import make_plan
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.compile import KEYED, STATELESS, compile_queries
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.streams import LogInput, RunningQuery
from tests.spark.flows import sums_flow
from tests.spark.log_writer import LogWriter
from tests.waiting import WAIT_S


class Cloud:
    """A log, the queries over it, their checkpoints and tables, as the driver holds them."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        rows_max: int = 50_000,
        letters_percent: float = 100,
        flow: Flow | None = None,
    ) -> None:
        self.spark, self.folder, self.letters_percent = spark, folder, letters_percent
        self.plan = make_plan((flow or sums_flow()).graph(), "cloud")
        self.log_folder, self.tables_file = folder / "log", folder / "tables.sqlite"
        self.log_folder.mkdir()
        kinds = {channel.id: channel.kind for channel in self.plan.channels}
        sources = [step.id for step in self.plan.graph.sources()]
        self.writer = LogWriter(self.log_folder, self.plan.graph.name, kinds, sources=sources)
        self.input = LogInput(self.log_folder, rows_max)
        self.reader = LogReader(self.log_folder)

    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def run(
        self,
        names: Sequence[str] = (STATELESS, KEYED),
        *,
        again: bool = False,
        batches: int | None = None,
    ) -> dict[str, RunningQuery]:
        """Run the queries until they stand at the end of the log (and `again`: have run something), or have
        written `batches` micro-batches each, then stop at once.
        """
        tables = open_tables(self.plan.graph, self.tables_file)
        running: list[RunningQuery] = []
        try:
            for query in compile_queries(self.plan):
                if query.name in names:
                    checkpoint = open_checkpoint(self.checkpoints() / query.name, query, SHARDS)
                    percent = self.letters_percent
                    running.append(RunningQuery(self.spark, query, checkpoint, self.input, tables, percent))
            self._wait(tables, running, again, batches)
        finally:
            for one in running:
                one.stop()
            tables.close()
        return {one.query.name: one for one in running}

    def _wait(
        self, tables: Tables, running: Sequence[RunningQuery], again: bool, batches: int | None
    ) -> None:
        newest = self.reader.positions(self.plan.graph.name)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            held = {one.query.name: tables.positions(one.query.name) for one in running}
            for one in running:
                one.check()
            if batches is not None and all(one.writer.last.batch_id + 1 >= batches for one in running):
                return
            ran = not again or all(one.writer.last.batch_id >= 0 for one in running)
            if ran and all(held[q.query.name].get(key, 0) >= newest[key] for q in running for key in newest):
                for one in running:
                    one.settle()
                    one.check()
                return
            time.sleep(0.1)
        raise AssertionError(f"the queries did not come to the log's end, {newest}, within {WAIT_S} s")

    def progress(self, query: str) -> int:
        """Micro-batches of a query that Spark has committed."""
        commits = self.checkpoints() / query / "spark" / "commits"
        return sum(one.name.isdecimal() for one in commits.iterdir()) if commits.is_dir() else 0

    def table(self, name: str) -> list[dict[str, Any]]:
        return rows(self.tables_file, name, canonical=True)

    def lose_the_last_commit(self) -> None:
        """As after a kill between the commits of sink and Spark: the last micro-batch is run again."""
        for folder in self.checkpoints().iterdir():
            commits = folder / "spark" / "commits"
            newest = max((p for p in commits.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
            newest.unlink()
            (commits / f".{newest.name}.crc").unlink(missing_ok=True)
