"""A plan's queries on real Spark over a log, with a store that keeps the rows of its sinks as they came."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain.planning import Plan
from geartrain.schema import ColumnBatch
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.compile import compile_queries
from geartrain_cloud.spark.status import is_flushed
from geartrain_cloud.spark.streams import LogInput, RunningQuery, dropped_rows
from tests.spark.case_log import Logged
from tests.spark.log_writer import LogWriter
from tests.waiting import WAIT_S

SHARDS = 3


class RowStore:
    """Stands in for the tables: each micro-batch once, rows with times and origins."""

    def __init__(self) -> None:
        self.sinks: dict[str, list[ColumnBatch]] = {}
        self.batches: dict[str, dict[int, Mapping[str, int]]] = {}
        self.repeated = 0

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        self.batches.setdefault(query, {})

    def positions(self, query: str) -> dict[str, int]:
        held = self.batches.get(query, {})
        return dict(held[max(held)]) if held else {}

    def write(
        self,
        query: str,
        batch_id: int,
        positions: Mapping[str, int],
        rows: Mapping[str, Sequence[ColumnBatch]],
        log_rows: int = 0,
    ) -> bool:
        held = self.batches[query]
        if batch_id in held:
            assert held[batch_id] == dict(positions)
            self.repeated += 1
            return False
        assert batch_id == len(held)
        held[batch_id] = dict(positions)
        for sink, batches in rows.items():
            self.sinks.setdefault(sink, []).extend(batches)
        return True


class SparkRun:
    """The queries of a plan over a log of their own."""

    def __init__(self, spark: SparkSession, folder: Path, plan: Plan, rows_max: int) -> None:
        self.spark, self.folder, self.plan, self.rows_max = spark, folder, plan, rows_max
        self.flow = plan.graph.name
        self.queries = compile_queries(plan)
        self.store = RowStore()
        (folder / "log").mkdir(parents=True)
        kinds, sources = {c.id: c.kind for c in plan.channels}, [step.id for step in plan.graph.sources()]
        self.log = LogWriter(folder / "log", self.flow, kinds, sources=sources)

    def append(self, entries: Iterable[Logged]) -> None:
        """Add to the log."""
        for entry in entries:
            if entry.rows is None:
                self.log.move(entry.clocks)
            else:
                self.log.append_rows(entry.channel, entry.rows, clocks=entry.clocks)

    def run(self, *, batches: int | None = None) -> None:
        """Run until the queries stand at the log's end, or one has run `batches` more; then stop at once."""
        running = []
        for query in self.queries:
            checkpoint = open_checkpoint(self.folder / "checkpoints" / query.name, query, SHARDS)
            checkpoint.clear_drafts()  # as a driver does that begins
            tables: Any = self.store
            log = LogInput(self.log.folder, self.rows_max)
            running.append(RunningQuery(self.spark, query, checkpoint, log, tables, letters_percent=100))
        before = {name: len(held) for name, held in self.store.batches.items()}
        newest = LogReader(self.log.folder).positions(self.flow)
        deadline = time.monotonic() + WAIT_S
        try:
            while not self._at_end(running, newest):
                for one in running:
                    one.check()
                last = max(len(held) - before[name] for name, held in self.store.batches.items())
                if batches is not None and last >= batches:
                    return
                assert time.monotonic() < deadline, "it takes too long"
                time.sleep(0.15)
            for one in running:
                one.settle()
                one.check()
        finally:
            for one in running:
                self._assert_none_dropped(one)
                one.stop()

    def _at_end(self, running: Sequence[RunningQuery], newest: Mapping[str, int]) -> bool:
        return all(
            self.store.positions(one.query.name).get(key, 0) >= position
            for one in running
            for key, position in newest.items()
        ) and all(
            is_flushed(LogReader(self.log.folder), one.query, self.store.positions(one.query.name))
            for one in running
        )

    @staticmethod
    def _assert_none_dropped(running: RunningQuery) -> None:
        reports = running._handle.recentProgress
        assert sum(dropped_rows(report) for report in reports if report["stateOperators"]) == 0
