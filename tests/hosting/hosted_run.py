"""A flow on the real host over a log that a test writes, and all that came to rest in its tables.

The flow is prepared in a process of its own, as one that is sent as a bundle. It runs beside nothing else,
and its rows come to rest in its SQLite file, with event times and origins.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from geartrain import Flow, Table
from geartrain.graph.graph import DEAD_LETTERS, LATE, OVERTAKEN, Graph
from geartrain.operators.sink import SinkOperator
from geartrain.planning.mixed import CutText, make_mixed_plan
from geartrain.planning.shuffles import stage_numbers
from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, FieldType, RowCodec, Schema
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, SYSTEM_TABLES, quoted
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.whole import numbers
from tests.hosting.hosted import HostFolder, RunningHost
from tests.reference.rows import Answer
from tests.spark.case_log import Logged, answer_of
from tests.spark.log_writer import LogWriter

INSTANCE = "proof.1"
SLOTS = 3
"""Over so many the keys are dealt, unless a test says otherwise."""

_MODULE = """import pickle
from pathlib import Path

flow = pickle.loads(Path(__file__).with_name("flow.pickle").read_bytes())
"""


class GivenFlow(Flow):
    """A flow of which there is the graph alone."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name)
        self._given = graph

    def graph(self) -> Graph:
        return self._given


class HostedRun:
    """A flow under one cut, or under several of devices, with a log and tables of its own."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        graph: Graph,
        cut: CutText = "cloud",
        cuts: Sequence[Sequence[str]] = (),
        *,
        rows_max: int,
        slots: int = SLOTS,
    ) -> None:
        """cuts: those of devices that have another one than `cut`, as the steps on the edge.

        The flow's tables are made without keys, so that every row stays to be seen.
        """
        graph = _without_keys(graph)
        self.spark, self.graph = spark, graph
        self.plan = make_mixed_plan(graph, cut, cuts)
        self.host_folder = HostFolder(folder)
        shuffles = stage_numbers(self.plan.graph, frozenset(self.plan.cloud))
        self._stages = max(SHARED_STAGES, *shuffles.values())
        self.host_folder.flows[INSTANCE] = {
            "flow": "given:flow",
            "bundle": str(put_bundle(folder / "bundle", graph)),
            "cut": cut if isinstance(cut, str) else list(cut),
            "cuts": [",".join(steps) for steps in cuts],
            "tables": str(self.tables),
            "letters_percent": 100,
            "rows_max": rows_max,
            "slots": slots,
        }
        self.host_folder.write()
        kinds = {channel.id: channel.kind for channel in self.plan.channels}
        sources = [step.id for step in self.plan.graph.sources()]
        self.repeated = 0
        """Micro-batches that hosts ran again and did not write, since the tables held them."""
        self.log = LogWriter(self.host_folder.log, INSTANCE, kinds, sources=sources)

    @property
    def tables(self) -> Path:
        """The file of the flow's tables."""
        return self.host_folder.tables(INSTANCE)

    def append(self, entries: Iterable[Logged]) -> None:
        """Add to the log."""
        for entry in entries:
            if entry.rows is None:
                self.log.move(entry.clocks)
            else:
                self.log.append_rows(entry.channel, entry.rows, clocks=entry.clocks)

    def run(self, *, batches: int | None = None) -> None:
        """Host the flow until all of the log is in its tables, or `batches` more micro-batches are; then stop
        the host at once. The next call begins a new one, which goes on from the checkpoint.
        """
        before = self.micro_batches
        with self.hosting() as hosting:
            if batches is None:
                hosting.through(INSTANCE)
            else:
                hosting.until(
                    lambda: self.micro_batches >= before + batches or self.host_folder.is_through(INSTANCE)
                )

    def host(self) -> RunningHost:
        """A new host of the flow, which the caller closes."""
        return RunningHost(self.spark, self.host_folder, stages=self._stages)

    @contextmanager
    def hosting(self) -> Iterator[RunningHost]:
        """A host of the flow, which a test steps itself; no row of it may have come too late for Spark."""
        hosting = self.host()
        try:
            yield hosting
            assert self.host_folder.status(INSTANCE).get("state") != "out", self.host_folder.status(INSTANCE)
            self._assert_none_dropped()
            self.repeated += self._repeated_by(hosting)
        finally:
            hosting.close()

    @staticmethod
    def _repeated_by(hosting: RunningHost) -> int:
        hosted, group = hosting.host.groups.hosted((INSTANCE, 1)), hosting.host.groups.of((INSTANCE, 1))
        store = None if hosted is None or group is None else group.store(hosted.name)
        return 0 if store is None else store.repeated

    def _assert_none_dropped(self) -> None:
        for query in self.spark.streams.active:
            for report in query.recentProgress:
                assert all(state["numRowsDroppedByWatermark"] == 0 for state in report["stateOperators"])

    @property
    def micro_batches(self) -> int:
        """How many micro-batches of the flow its tables hold."""
        if not self.tables.exists():
            return 0
        with closing(sqlite3.connect(self.tables)) as db:
            found = db.execute("SELECT batch_id FROM _queries WHERE query = ?", (HOSTED,)).fetchone()
        return 0 if found is None else int(found[0]) + 1

    def lose_the_last_commit(self) -> None:
        """As after a kill between the commits of tables and Spark: the last micro-batch is run again.

        That is so already where one was under way when the host was stopped.
        """
        for place in self.host_folder.state.glob("groups/*/spark"):
            offsets, commits = numbers(place / "offsets"), numbers(place / "commits")
            if commits and commits[-1] == offsets[-1]:
                (place / "commits" / f"{commits[-1]}").unlink()
                (place / "commits" / f".{commits[-1]}.crc").unlink(missing_ok=True)

    def sinks(self) -> dict[str, list[ColumnBatch]]:
        """The rows of each sink that has some; the table of each holds what was written, once."""
        found: dict[str, list[ColumnBatch]] = {}
        with closing(sqlite3.connect(self.tables)) as db:
            written = dict(db.execute("SELECT sink, records FROM _sinks"))
            for sink, (table, schema) in self._places().items():
                rows = _read(db, table, schema)
                assert written[sink] == len(rows), f"{sink}: {written[sink]} written, {len(rows)} held"
                if len(rows):
                    found[sink] = [rows]
        return found

    def _places(self) -> dict[str, tuple[str, Schema]]:
        """The table of each sink and of what is beside them, with the schema of its rows."""
        letters = RowCodec(Letter).schema
        found = {sink: (SYSTEM_TABLES[sink].name, letters) for sink in (DEAD_LETTERS, LATE, OVERTAKEN)}
        for step in self.graph.sinks():
            if isinstance(step.operator, SinkOperator) and isinstance(step.operator.table, Table):
                schema = RowCodec(self.graph[step.inputs[0].step].out).schema
                found[step.id] = step.operator.table.name, schema
        return found

    def answer(self) -> Answer:
        """All that reached the sinks, as the reference gives its own."""
        sinks = self.sinks()
        assert OVERTAKEN not in sinks
        return answer_of(self.graph, sinks)

    def records(self, sink: str) -> list[tuple[int, bytes, Any]]:
        """(event time, path of the origin, record) of each row of a sink, in canonical order."""
        codec = RowCodec(self.graph[self.graph[sink].inputs[0].step].out)
        found: list[tuple[int, bytes, Any]] = []
        for batch in self.sinks().get(sink, []):
            paths = batch.paths or [b""] * len(batch)
            found += zip(batch.times, paths, codec.from_columns(batch.fields), strict=True)
        return found


def _without_keys(graph: Graph) -> Graph:
    steps = []
    for step in graph.steps:
        if isinstance(operator := step.operator, SinkOperator) and isinstance(operator.table, Table):
            table = dataclasses.replace(operator.table, key=())
            step = replace(step, operator=replace(operator, table=table))
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def put_bundle(folder: Path, graph: Graph) -> Path:
    """A bundle whose module is the flow; it imports the modules of its steps from where the tests do."""
    package = folder / "given"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_MODULE)
    pickled: bytes = CloudPickleSerializer().dumps(GivenFlow(graph))  # type: ignore[no-untyped-call]
    (package / "flow.pickle").write_bytes(pickled)
    return folder


def _read(db: sqlite3.Connection, table: str, schema: Schema) -> ColumnBatch:
    """The rows of a table in canonical order, bit for bit.

    SQLite has bool as a number, and NaN as NULL. In a column that may hold None, a NaN comes back as None: a
    proof of a flow with one there fails.
    """
    names = [field.name for field in schema.fields]
    listed = ", ".join(map(quoted, [*names, *ORDER_COLUMNS]))
    statement = f"SELECT {listed} FROM {quoted(table)} ORDER BY {', '.join(ORDER_COLUMNS)}"
    held = db.execute(statement).fetchall()
    columns = [list(column) for column in zip(*held, strict=True)] or [[] for _ in (*names, *ORDER_COLUMNS)]
    for field, column in zip(schema.fields, columns, strict=False):
        if field.type is FieldType.BOOL:
            column[:] = [None if value is None else bool(value) for value in column]
        elif field.type is FieldType.FLOAT64 and not field.optional:
            column[:] = [math.nan if value is None else value for value in column]
    return ColumnBatch(columns[: len(names)], *columns[len(names) :])
