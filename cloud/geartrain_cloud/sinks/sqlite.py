"""The tables of a flow in one SQLite file: each micro-batch is one transaction of its rows and its positions.

It stands last on a record's path. Spark hands a micro-batch over at least once. The rows, the micro-batch's
number and the positions where it ends are written together, so the file gets each micro-batch exactly once.

Guarantees: after a crash the file holds a micro-batch wholly or not at all. One that it holds is not written
again. A query that starts from nothing is refused where the file already holds its rows. The file has mode
0600 and a WAL, and every commit is durable when it returns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.declarations.sink import Table
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import Binding, Mark
from geartrain_cloud.sinks.evolution import Evolution, evolutions
from geartrain_cloud.sinks.layout import Layout, TableError, system_layouts
from geartrain_cloud.sinks.sqlite_evolution import declare as note_made
from geartrain_cloud.sinks.sqlite_evolution import evolve, held_layouts, note_again

LAYOUT = SqliteLayout(b"GTtb", 1, TableError, "use another file")
"""Of the file's own tables, and of the origins of all rows."""

BUSY_S = 30.0
"""How long a write waits for whoever else writes the file, where nothing else is said."""
_SINKS = """CREATE TABLE _sinks (
    sink TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, key TEXT NOT NULL, schema TEXT NOT NULL,
    records INTEGER NOT NULL DEFAULT 0)"""
_QUERIES = """CREATE TABLE _queries (
    query TEXT PRIMARY KEY, checkpoint TEXT NOT NULL, batch_id INTEGER NOT NULL, positions TEXT NOT NULL,
    log_rows INTEGER NOT NULL)"""
_SET_QUERY = "INSERT OR REPLACE INTO _queries VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Where a query stands in the file.

    batch_id: the last micro-batch held, -1 for none; positions: where it ended in the log; log_rows: rows of
    the log up to there.
    """

    checkpoint: str
    batch_id: int
    positions: Mapping[str, int]
    log_rows: int = 0

    @property
    def mark(self) -> Mark:
        """The same as every store has it."""
        return Mark(self.checkpoint, self.batch_id, self.positions)


class SqliteTables:
    """The writing side of one file. Its methods may be called from several threads, one after the other."""

    def __init__(self, path: str | Path, busy_s: float = BUSY_S) -> None:
        """Open or create the file at `path` with the two system tables; raises `TableError`.

        busy_s: how long a write waits for whoever else writes the file.
        """
        self.path = Path(path)
        self._lock = threading.Lock()
        self._layouts: dict[str, Layout] = {}
        self._wanted: list[Layout] | None = None
        with self._errors():
            self._db = open_to_write(self.path, busy_s=busy_s)
        self._create()
        for layout in system_layouts():
            self._declare(layout)

    def _create(self) -> None:
        with self._transaction():
            LAYOUT.prepare(self._db, f"the file of tables {self.path}", _create)

    @property
    def place(self) -> str:
        """The file, as a sentence names it."""
        return str(self.path)

    def declare(self, sink_id: str, table: Table, schema: Schema) -> None:
        """Say where the records of `sink_id` come to rest, and make the table if there is none yet.

        Raises `TableError` when the table cannot be kept, or the file holds another one of this name.
        """
        self._declare(Layout(sink_id, table, schema))

    def _declare(self, layout: Layout) -> None:
        layout.check()
        name, key = layout.table.name, json.dumps(layout.table.key)
        with self._transaction():
            held = self._db.execute(
                "SELECT sink, name, key, schema FROM _sinks WHERE sink = ? OR name = ? COLLATE NOCASE",
                (layout.sink, name),
            ).fetchall()
            if not held:
                self._db.execute(layout.create)
                note_made(self._db, layout)
            elif [(*one[:3], Schema.from_json(one[3])) for one in held] != [
                (layout.sink, name, key, layout.schema)
            ]:
                raise TableError(
                    f"{self.path} holds table {held[0][1]!r} of sink {held[0][0]!r} with another name, key "
                    f"or fields than sink {layout.sink!r} has: rename the table, or start with a new file"
                )
            else:
                note_again(self._db, layout)
        self._layouts[layout.sink] = layout

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        with self._lock, self._errors():
            return evolutions(held_layouts(self._db), layouts)

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these from the next micro-batch on that is written, in its transaction.

        Raises `TableError` for a table that cannot be kept. One that cannot be evolved is refused by `write`.
        """
        for layout in layouts:
            layout.check()
        self._layouts = {layout.sink: layout for layout in (*system_layouts(), *layouts)}
        self._wanted = list(layouts)

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind `query` to the checkpoint named `checkpoint`; `has_run`: it holds a micro-batch already.

        Raises `TableError` when file and checkpoint do not belong together. So a query that starts again from
        nothing never doubles a record, and one that goes on where the file has nothing never loses one.
        """
        held = self.progress(query)
        mark = None if held is None else held.mark
        if self._binding(query).check_checkpoint(mark, checkpoint, has_run=has_run):
            with self._transaction():
                self._db.execute(_SET_QUERY, (query, checkpoint, -1, "{}", 0))

    def _binding(self, query: str) -> Binding:
        return Binding(f"query {query!r}", str(self.path), "file")

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """No rows: SQLite holds every value of a record."""
        return {}

    def write(
        self,
        query: str,
        batch_id: int,
        positions: Mapping[str, int],
        rows: Mapping[str, Sequence[ColumnBatch]],
        log_rows: int = 0,
    ) -> bool:
        """Write micro-batch `batch_id` of `query`, which ends at `positions`, in one durable transaction.

        rows: record batches by sink; log_rows: rows of the log that they were made of. Returns False where
        the file holds that micro-batch already. The tables become those of `evolve` before.

        Raises `TableError` for a sink that was not declared, for positions that go back, or for a file that
        cannot be written. It also raises it for a micro-batch that leaves a gap after the last one, or
        repeats it with other positions.
        """
        if unknown := sorted(set(rows) - set(self._layouts)):
            raise TableError(f"query {query!r} writes to {unknown[0]!r}, which is not a declared sink")
        with self._transaction():
            held = self._progress(query) or QueryProgress("", -1, {})
            if self._binding(query).holds(held.mark, batch_id, positions):
                return False
            if self._wanted is not None:
                evolve(self._db, self._wanted)
            for sink, batches in rows.items():
                layout = self._layouts[sink]
                self._db.executemany(layout.insert, layout.rows(batches))
                count = sum(map(len, batches))
                self._db.execute("UPDATE _sinks SET records = records + ? WHERE sink = ?", (count, sink))
            ends = json.dumps(dict(positions), sort_keys=True)
            self._db.execute(_SET_QUERY, (query, held.checkpoint, batch_id, ends, held.log_rows + log_rows))
        self._wanted = None
        return True

    def positions(self, query: str) -> dict[str, int]:
        """Up to which position of each channel the file holds what `query` made of it; empty for none."""
        held = self.progress(query)
        return {} if held is None else dict(held.positions)

    def progress(self, query: str) -> QueryProgress | None:
        """Where `query` stands, None where it was never attached."""
        with self._lock:
            return self._progress(query)

    def _progress(self, query: str) -> QueryProgress | None:
        row = self._db.execute(
            "SELECT checkpoint, batch_id, positions, log_rows FROM _queries WHERE query = ?", (query,)
        ).fetchone()
        return None if row is None else QueryProgress(row[0], row[1], json.loads(row[2]), row[3])

    def records(self) -> dict[str, int]:
        """Records written so far, by sink: each exactly once, those replaced by a later one included."""
        with self._lock:
            return dict(self._db.execute("SELECT sink, records FROM _sinks ORDER BY sink").fetchall())

    def _errors(self) -> AbstractContextManager[None]:
        return translated(TableError, f"the file of tables {self.path}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One transaction, durable when it is left."""
        with self._lock, self._errors(), transaction(self._db):
            yield

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _create(database: sqlite3.Connection) -> None:
    for statement in (_SINKS, _QUERIES):
        database.execute(statement)
