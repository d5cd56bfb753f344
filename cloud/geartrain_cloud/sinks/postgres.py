"""Tables in PostgreSQL: each micro-batch is one transaction of its rows and its number.

A store beside the flow's own tables. Guarantees: the database holds a micro-batch wholly or not at all. One
that it holds is not written again, whether a connection broke before or after the commit. Of two records of
one key, the canonically later one stays. The store waits for a while for a database that is away.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from geartrain.declarations.cloud_sink import PostgresTable
from geartrain.declarations.sink import Sink
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import NOTHING, Binding, Mark
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, Layout, TableError
from geartrain_cloud.sinks.postgres_columns import (
    ORDER_TYPES,
    column_type,
    converter,
    insert_of,
    names_of,
    not_kept,
)
from geartrain_cloud.sinks.store import Rows, is_reached

_LOG = logging.getLogger("geartrain.sinks")
T = TypeVar("T")

MARKS = "_geartrain_queries"
"""The table that says how far each query of each flow is in this database."""

_AWAY_S_MAX = 60.0
_PAUSE_S = 0.5
_CONNECT_S_MAX = 10
_REFUSALS_MAX = 3
"""How often a server that is ready may refuse us: it may have become so just after the first refusal."""


class PostgresTables:
    """The tables of one flow in one database, named by a `dsn`."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._layouts: dict[str, tuple[str, Layout]] = {}
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Make the table if there is none yet; raises `TableError` where there is another of its name."""
        dsn = sink.dsn if isinstance(sink, PostgresTable) else ""
        if "password" in _parts(sink_id, dsn):
            raise TableError(
                f"sink {sink_id!r}: its dsn holds a password, which does not belong into a flow or a "
                "configuration: use PGPASSWORD or ~/.pgpass"
            )
        layout = Layout(sink_id, sink, schema)
        layout.check()
        self._layouts[sink_id] = (dsn, layout)
        self._run(dsn, lambda db: self._create(db, layout))

    def _create(self, db: psycopg.Connection[Any], layout: Layout) -> None:
        name = layout.table.name
        found = db.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position",
            (name,),
        ).fetchall()
        wanted = [*layout.columns, *ORDER_COLUMNS]
        if found and [column for (column,) in found] != wanted:
            raise TableError(
                f"sink {layout.sink!r}: the database has a table {name!r} with other columns "
                f"({', '.join(column for (column,) in found)}): rename the sink, or drop that table"
            )
        parts = [
            sql.SQL("{} {}").format(sql.Identifier(f.name), column_type(f)) for f in layout.schema.fields
        ]
        parts += [
            sql.SQL("{} {} NOT NULL").format(sql.Identifier(c), sql.SQL(t))
            for c, t in zip(ORDER_COLUMNS, ORDER_TYPES, strict=True)
        ]
        if layout.primary_key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names_of(layout.primary_key)))
        db.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                sql.Identifier(name), sql.SQL(", ").join(parts)
            )
        )
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (flow text, query text, checkpoint text NOT NULL, "
            "batch_id bigint NOT NULL, positions text NOT NULL, PRIMARY KEY (flow, query))"
        )

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint in every database; raises `TableError` where they differ."""
        for dsn in self._databases():
            self._run(dsn, lambda db: self._attach(db, query, checkpoint, has_run))

    def _attach(self, db: psycopg.Connection[Any], query: str, checkpoint: str, has_run: bool) -> None:
        held = self._mark(db, query)
        if self._binding(db, query).check_checkpoint(held, checkpoint, has_run=has_run):
            self._set_mark(db, query, checkpoint, -1, {})

    def _binding(self, db: psycopg.Connection[Any], query: str) -> Binding:
        return Binding(f"query {query!r} of flow {self._flow}", f"the database {db.info.dbname}", "database")

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which the databases hold what a query has written; none where that is nothing."""
        found = (self._run(dsn, lambda db: self._mark(db, query)) for dsn in self._databases())
        return [mark.positions for mark in found if mark is not None and mark.positions]

    def adopt(self, query: str, checkpoint: str, positions: Mapping[str, int] | None = None) -> None:
        """Bind a query to a checkpoint that was made again; what the databases hold of it stays, at
        `positions` where these are given.
        """
        for dsn in self._databases():
            self._run(dsn, lambda db: self._adopt(db, query, checkpoint, positions))

    def _adopt(
        self, db: psycopg.Connection[Any], query: str, checkpoint: str, positions: Mapping[str, int] | None
    ) -> None:
        held = self._mark(db, query)
        ends = {} if held is None else held.positions
        self._set_mark(db, query, checkpoint, -1, positions if ends and positions is not None else ends)

    def _mark(self, db: psycopg.Connection[Any], query: str) -> Mark | None:
        """Checkpoint, last micro-batch and its end positions of a query."""
        found = db.execute(
            f"SELECT checkpoint, batch_id, positions FROM {MARKS} WHERE flow = %s AND query = %s FOR UPDATE",  # noqa: S608
            (self._flow, query),
        ).fetchone()
        return None if found is None else Mark(str(found[0]), int(found[1]), json.loads(found[2]))

    def _set_mark(
        self,
        db: psycopg.Connection[Any],
        query: str,
        checkpoint: str,
        batch_id: int,
        positions: Mapping[str, int],
    ) -> None:
        db.execute(
            f"INSERT INTO {MARKS} VALUES (%s, %s, %s, %s, %s) ON CONFLICT (flow, query) DO UPDATE SET "  # noqa: S608
            "checkpoint = excluded.checkpoint, batch_id = excluded.batch_id, positions = excluded.positions",
            (self._flow, query, checkpoint, batch_id, json.dumps(dict(positions), sort_keys=True)),
        )

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, str]:
        """Rows with a text that PostgreSQL cannot hold."""
        return not_kept(self._layouts[sink_id][1].schema, rows)

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, in one transaction a database; raises `TableError`."""
        for dsn in self._databases():
            mine = {sink: batches for sink, batches in rows.items() if self._layouts[sink][0] == dsn}
            self._run(dsn, lambda db, mine=mine: self._write(db, query, batch_id, positions, mine))  # type: ignore[misc]

    def catch_up(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """As `write`, but a database that stands at `positions` or beyond is left as it is."""
        for dsn in self._databases():
            mine = {sink: batches for sink, batches in rows.items() if self._layouts[sink][0] == dsn}
            self._run(dsn, lambda db, mine=mine: self._catch_up(db, query, batch_id, positions, mine))  # type: ignore[misc]

    def _catch_up(
        self, db: psycopg.Connection[Any], query: str, batch_id: int, positions: Mapping[str, int], rows: Rows
    ) -> None:
        held = self._mark(db, query)
        if held is None or not is_reached(held.positions, positions):
            self._write(db, query, batch_id, positions, rows)
        else:
            self._set_mark(db, query, held.checkpoint, max(batch_id, held.batch_id), held.positions)

    def _write(
        self, db: psycopg.Connection[Any], query: str, batch_id: int, positions: Mapping[str, int], rows: Rows
    ) -> None:
        held = self._mark(db, query) or NOTHING
        if self._binding(db, query).holds(held, batch_id, positions):
            return
        with db.cursor() as cursor:
            for sink, batches in rows.items():
                layout = self._layouts[sink][1]
                converters = [converter(field) for field in layout.schema.fields]
                width = len(converters)
                cursor.executemany(
                    insert_of(layout),
                    [
                        (*(c(v) for c, v in zip(converters, row[:width], strict=True)), *row[width:])
                        for row in layout.rows(batches)
                    ],
                )
        self._set_mark(db, query, held.checkpoint, batch_id, positions)

    def reset(self) -> None:
        """Empty the tables and forget the queries of this flow."""
        for dsn in self._databases():
            names = [layout.table.name for where, layout in self._layouts.values() if where == dsn]
            self._run(dsn, lambda db, names=names: self._empty(db, names))  # type: ignore[misc]

    def _empty(self, db: psycopg.Connection[Any], names: list[str]) -> None:
        for name in names:
            db.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
        db.execute(f"DELETE FROM {MARKS} WHERE flow = %s", (self._flow,))  # noqa: S608

    def _databases(self) -> list[str]:
        return list(dict.fromkeys(dsn for dsn, _ in self._layouts.values()))

    def _run(self, dsn: str, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do `work` in one transaction; again, from its start, while the database is away."""
        began, refusals, refused = time.monotonic(), 0, False
        while True:
            try:
                with self._transaction(dsn) as db:
                    return work(db)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                refusals += dsn not in self._connections and _is_ready(dsn)
                self._drop(dsn)
                said = " ".join(str(error).split())
                over = refusals >= _REFUSALS_MAX or time.monotonic() - began > _AWAY_S_MAX
                if over or not _comes_back(error):
                    raise TableError(
                        f"the database ({dsn or 'of the environment'}) cannot be used: {said}: start it, or "
                        "correct the sink's dsn or PGHOST, PGPORT, PGUSER and PGDATABASE"
                    ) from error
                if not refused:
                    _LOG.warning("the database is away, trying for up to %g s: %s", _AWAY_S_MAX, said)
                refused = True
                time.sleep(_PAUSE_S)
            except psycopg.Error as error:
                raise TableError(f"the database refused: {' '.join(str(error).split())}") from error

    @contextmanager
    def _transaction(self, dsn: str) -> Iterator[psycopg.Connection[Any]]:
        db = self._connections.get(dsn)
        if db is None or db.closed:
            self._drop(dsn)
            db = self._connections[dsn] = psycopg.connect(
                dsn, connect_timeout=_CONNECT_S_MAX, application_name="geartrain"
            )
        with db.transaction():
            yield db

    def _drop(self, dsn: str) -> None:
        db = self._connections.pop(dsn, None)
        if db is not None:
            db.close()

    def close(self) -> None:
        """Close the connections."""
        for dsn in list(self._connections):
            self._drop(dsn)


def _parts(sink_id: str, dsn: str) -> Mapping[str, Any]:
    try:
        return conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise TableError(
            f"sink {sink_id!r}: its dsn cannot be read: {' '.join(str(error).split())}"
        ) from None


def _is_ready(dsn: str) -> bool:
    """Whether the server takes connections, whoever asks; a failed one does not say why in a code."""
    where = make_conninfo(dsn, connect_timeout=_CONNECT_S_MAX)
    return pq.PGconn.ping(where.encode()) == pq.Ping.OK


def _comes_back(error: psycopg.Error) -> bool:
    """Whether waiting may help: a wrong password, user or database is wrong for ever."""
    return error.sqlstate is None or not error.sqlstate.startswith(("28", "3D"))
