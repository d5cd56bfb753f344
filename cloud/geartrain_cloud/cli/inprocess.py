"""A flow in this process, from its sources to its tables: no broker, no Spark, the same bytes.

What `gear run` does. One fragment holds all steps, so that every record takes the way that any cut gives
it, but for the way between the tiers. Guarantees: the tables are those of a whole run, put in place when it
has ended; a run that fails leaves the former ones as they were.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.declarations.sink import Table
from geartrain.errors import SourceError
from geartrain.graph.graph import DEAD_LETTERS, LATE, OVERTAKEN, Graph
from geartrain.operators.sink import SinkOperator
from geartrain.operators.source import SourceOperator
from geartrain.records.batch import Batch
from geartrain.records.letters import Letter
from geartrain.runtime.fragment import Output
from geartrain.runtime.local import LocalRun
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.sinks.layout import SYSTEM_TABLES
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows, table_names, write_json

READ_ROWS = 1_000
WRITE_ROWS = 20_000
_QUERY = "run"


@dataclass(slots=True)
class RunResult:
    """Totals of a run.

    records_read: rows that became records; dead_letters, late: those that did not, or not in time; records:
    by sink, all that came to rest there; rows: by table, what it holds at the end; refused: the first dead
    letters.
    """

    records_read: int = 0
    dead_letters: int = 0
    late: int = 0
    records: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)


def run_in_process(graph: Graph, output: Path | None, *, refused_max: int = 10) -> RunResult:
    """Run `graph` to the end of its sources.

    output: a folder for `tables.sqlite` and one JSON file a table (the output contract), or None to keep
    nothing. Raises `SourceError` when a source cannot be read, or waits for something before its end, and
    `TableError`.
    """
    if output is not None:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gear-run-", dir=output) as folder:
        path = Path(folder) / "tables.sqlite"
        result = asyncio.run(_run(graph, path))
        result.refused = rows(path, "dead_letters")[:refused_max]
        # Without a log between them no clock passes a record.
        names = [name for name in table_names(path) if name != SYSTEM_TABLES[OVERTAKEN].name]
        contents = {name: rows(path, name) for name in names}
        result.rows = {name: len(contents[name]) for name in names}
        if output is not None:
            for suffix in ("-wal", "-shm"):  # of the former file: SQLite would take them for the new one's
                (output / f"{path.name}{suffix}").unlink(missing_ok=True)
            path.replace(output / path.name)
            for name in names:
                write_json(contents[name], output / f"{name}.json")
    return result


async def _run(graph: Graph, path: Path) -> RunResult:
    tables = SqliteTables(path)
    try:
        codecs = _declare(graph, tables)
        run = LocalRun(graph, clock=SystemClock(), randomness=SystemRandomness())
        writer = _Writer(tables, codecs)
        async for output in run.outputs(READ_ROWS):
            writer.take(output)
        writer.flush()
        _check_ended(graph, run)
        totals = tables.records()
        totals.pop(OVERTAKEN, 0)
        return RunResult(
            records_read=run.progress.records_read,
            dead_letters=totals.pop(DEAD_LETTERS, 0),
            late=totals.pop(LATE, 0),
            records=totals,
        )
    finally:
        tables.close()


def _declare(graph: Graph, tables: SqliteTables) -> dict[str, RowCodec]:
    """Make the tables; how the records of each sink become columns."""
    codecs = {DEAD_LETTERS: RowCodec(Letter), LATE: RowCodec(Letter)}
    for step in graph.sinks():
        if isinstance(step.operator, SinkOperator):
            codecs[step.id] = RowCodec(graph[step.inputs[0].step].out)
            sink = step.operator.table  # of whatever kind: here it is a table of its name
            tables.declare(step.id, Table(sink.name, sink.key), codecs[step.id].schema)
    return codecs


class _Writer:
    """Collects what leaves the fragment and writes it in transactions of about `WRITE_ROWS` rows."""

    def __init__(self, tables: SqliteTables, codecs: dict[str, RowCodec]) -> None:
        self._tables, self._codecs = tables, codecs
        self._waiting: dict[str, list[ColumnBatch]] = {}
        self._count = 0
        self._batch_id = 0

    def take(self, output: Output) -> None:
        """Keep the batches of an output; write them once they are many."""
        for sink, batches in output.batches.items():
            self._waiting.setdefault(sink, []).extend(self._columns(sink, batches))
            self._count += sum(map(len, batches))
        if self._count >= WRITE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self._waiting:
            self._tables.write(_QUERY, self._batch_id, {}, self._waiting)
            self._waiting, self._count = {}, 0
            self._batch_id += 1

    def _columns(self, sink: str, batches: Iterable[Batch]) -> list[ColumnBatch]:
        codec = self._codecs[sink]
        return [
            ColumnBatch(codec.to_columns(one.values), one.times, one.names, one.numbers, one.paths)
            for one in batches
        ]


def _check_ended(graph: Graph, run: LocalRun) -> None:
    """Refuse a result that lacks the rest of a bounded source: one that gave nothing more before its end."""
    bounded = {
        step.id
        for step in graph.sources()
        if isinstance(step.operator, SourceOperator) and step.operator.source.bounded
    }
    for (step, split), progress in run.progress.positions.items():
        if step in bounded and not progress.ended:
            raise SourceError(
                f"source {step} ({split}) gave nothing more at position {progress.position}, before its end: "
                f"a run in one process waits for nobody, so let {step} give all it has at once (speed max)"
            )
