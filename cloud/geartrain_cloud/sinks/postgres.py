"""Tables in PostgreSQL: each micro-batch is one transaction of its rows and its number.

A store beside the flow's own tables. Guarantees: the database holds a micro-batch wholly or not at all. One
that it holds is not written again, whether a connection broke before or after the commit. Of two records of
one key, the canonically later one stays. The store waits for a while for a database that is away.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from geartrain.adapters.sqlite import Fault
from geartrain.declarations.cloud_sink import DSN_IS_OPEN, PostgresTable
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks import postgres_catalog as catalog
from geartrain_cloud.sinks.binding import NOTHING, Binding, Mark
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import AwayError, Layout, TableError
from geartrain_cloud.sinks.limits import check_postgres
from geartrain_cloud.sinks.postgres_columns import converter, insert_of, not_kept
from geartrain_cloud.sinks.secrets import NONE, SinkSecrets, asked_in
from geartrain_cloud.sinks.store import Rows

_LOG = logging.getLogger("geartrain.sinks")
T = TypeVar("T")

MARKS = "_geartrain_queries"
"""The table that says how far each query of each flow is in this database."""

_LOCK_MS_MAX = 100
"""How long columns are changed that somebody reads; a longer wait would hold up whoever comes after."""
_AWAY_S_MAX = 60.0
_PAUSE_S = 0.5
_CONNECT_S_MAX = 10
_REFUSALS_MAX = 3
"""How often a server that is ready may refuse us: it may have become so just after the first refusal."""


class PostgresTables:
    """The tables of one flow in one database, named by a `dsn`."""

    def __init__(self, flow: str, secrets: SinkSecrets = NONE) -> None:
        self._flow, self._secrets = flow, secrets
        self._layouts: dict[str, tuple[str, Layout]] = {}
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._bound: dict[str, str] = {}
        self._changing: set[str] = set()
        self._joining: set[str] = set()

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for a table that no PostgreSQL can keep, and for a dsn that cannot be."""
        self._checked(layout)

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Make the table if there is none yet; raises `TableError` where there is another of its name."""
        dsn, layout = self._checked(Layout(sink_id, sink, schema))
        self._layouts[sink_id] = (dsn, layout)
        self._run(dsn, lambda db: self._declare(db, layout))

    def _checked(self, layout: Layout) -> tuple[str, Layout]:
        sink = layout.table
        dsn = sink.dsn if isinstance(sink, PostgresTable) else ""
        check_postgres(layout)
        parts = _parts(layout.sink, dsn)
        if "password" in parts and not _asked(layout.sink, parts):
            raise TableError(f"sink {layout.sink!r}: {DSN_IS_OPEN}")
        return dsn, layout

    def _declare(self, db: psycopg.Connection[Any], layout: Layout) -> None:
        catalog.declare(db, layout)
        self._make_marks(db)

    def _make_marks(self, db: psycopg.Connection[Any]) -> None:
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (flow text, query text, checkpoint text NOT NULL, "
            "batch_id bigint NOT NULL, positions text NOT NULL, PRIMARY KEY (flow, query))"
        )

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        found = [self._checked(layout) for layout in layouts]
        return [self._run(dsn, lambda db, it=it: catalog.planned(db, it)) for dsn, it in found]  # type: ignore[misc]

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these from the next micro-batch on that is written, in its transaction.

        Raises `TableError` for a table that cannot be kept. One that cannot be evolved is refused by `write`.
        """
        known = set(self._databases())
        self._layouts = {layout.sink: self._checked(layout) for layout in layouts}
        self._changing = set(self._databases())
        self._joining = self._changing - known

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint in every database; raises `TableError` where they differ."""
        for dsn in self._databases():
            self._run(dsn, lambda db, dsn=dsn: self._attach(db, dsn, query, checkpoint, has_run))  # type: ignore[misc]
        self._bound[query] = checkpoint

    def _attach(
        self, db: psycopg.Connection[Any], dsn: str, query: str, checkpoint: str, has_run: bool
    ) -> None:
        self._make_marks(db)
        held = self._mark(db, query)
        if held is None and dsn in self._joining:
            return
        if self._binding(db, query).check_checkpoint(held, checkpoint, has_run=has_run):
            self._set_mark(db, query, checkpoint, -1, {})

    def _binding(self, db: psycopg.Connection[Any], query: str) -> Binding:
        return Binding(f"query {query!r} of flow {self._flow}", f"the database {db.info.dbname}", "database")

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which the databases hold what a query has written; none where that is nothing."""
        found = (self._run(dsn, lambda db: self._mark(db, query)) for dsn in self._databases())
        return [mark.positions for mark in found if mark is not None and mark.positions]

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

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """Rows that PostgreSQL cannot hold."""
        return not_kept(self._layouts[sink_id][1], rows)

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, in one transaction a database; raises `TableError`."""
        for dsn in self._databases():
            mine = {sink: batches for sink, batches in rows.items() if self._layouts[sink][0] == dsn}
            bring = partial(
                self._write, dsn=dsn, query=query, batch_id=batch_id, positions=positions, rows=mine
            )
            if self._run(dsn, bring):
                self._changing.discard(dsn)
                self._joining.discard(dsn)

    def _write(
        self,
        db: psycopg.Connection[Any],
        dsn: str,
        query: str,
        batch_id: int,
        positions: Mapping[str, int],
        rows: Rows,
    ) -> bool:
        """Whether it was not held yet."""
        held = (
            self._joined(db, query, batch_id) if dsn in self._joining else self._mark(db, query)
        ) or NOTHING
        if self._binding(db, query).holds(held, batch_id, positions):
            return False
        if dsn in self._changing:
            self._change(db, dsn)
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
        return True

    def _change(self, db: psycopg.Connection[Any], dsn: str) -> None:
        """Make the tables of a database those that were asked for."""
        db.execute("SELECT set_config('lock_timeout', %s, true)", (str(_LOCK_MS_MAX),))
        for where, layout in self._layouts.values():
            if where == dsn:
                catalog.evolve(db, layout)

    def _joined(self, db: psycopg.Connection[Any], query: str, batch_id: int) -> Mark | None:
        """What a database holds that came with a revision: it is at the micro-batch before."""
        self._make_marks(db)
        held, checkpoint = self._mark(db, query), self._bound[query]
        if held is None or held.batch_id < batch_id - 1:
            self._binding(db, query).check_checkpoint(held, checkpoint, has_run=False)
            held = Mark(checkpoint, batch_id - 1, {} if held is None else held.positions)
        return held

    def _databases(self) -> list[str]:
        return list(dict.fromkeys(dsn for dsn, _ in self._layouts.values()))

    def _run(self, dsn: str, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do `work` in one transaction; again, from its start, while the database is away."""
        began, refusals, refused = time.monotonic(), 0, False
        while True:
            try:
                with self._transaction(dsn) as db:
                    return work(db)
            except psycopg.errors.LockNotAvailable as error:
                raise AwayError(
                    f"the database ({dsn or 'of the environment'}) {Fault.IN_USE.value}"
                ) from error
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                refusals += dsn not in self._connections and _is_ready(dsn)
                self._drop(dsn)
                said = " ".join(str(error).split())
                over = refusals >= _REFUSALS_MAX or time.monotonic() - began > _AWAY_S_MAX
                if over or not _comes_back(error):
                    raise TableError(
                        f"the database ({dsn or 'of the environment'}) cannot be used ({said}): start it, or "
                        "correct the sink's dsn or PGHOST, PGPORT, PGUSER and PGDATABASE"
                    ) from error
                if not refused:
                    _LOG.warning("the database is away, trying for up to %g s: %s", _AWAY_S_MAX, said)
                refused = True
                time.sleep(_PAUSE_S)
            except psycopg.Error as error:
                raise TableError(
                    f"the database refuses a statement ({' '.join(str(error).split())}): see the rights of "
                    "this user, and whether another program has changed the table"
                ) from error

    @contextmanager
    def _transaction(self, dsn: str) -> Iterator[psycopg.Connection[Any]]:
        db = self._connections.get(dsn)
        if db is None or db.closed:
            self._drop(dsn)
            sink_id = next((sink for sink, (place, _) in self._layouts.items() if place == dsn), "")
            held: dict[str, Any] = {**self._secrets.all(sink_id, _asked(sink_id, _parts(sink_id, dsn)))}
            db = self._connections[dsn] = psycopg.connect(
                dsn, connect_timeout=_CONNECT_S_MAX, application_name="geartrain", **held
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
    except psycopg.Error:  # what it says may hold a password
        raise TableError(
            f"sink {sink_id!r}: its dsn cannot be read: write it as host=db.example dbname=plant "
            "user=geartrain, or as an address that begins with postgresql://"
        ) from None


def _asked(sink_id: str, parts: Mapping[str, Any]) -> dict[str, str]:
    """The name of the secret in the place of a password, if one is there."""
    return asked_in(f"sink {sink_id!r}: dsn", {"password": str(parts.get("password", ""))})


def _is_ready(dsn: str) -> bool:
    """Whether the server takes connections, whoever asks; a failed one does not say why in a code."""
    where = make_conninfo(dsn, connect_timeout=_CONNECT_S_MAX)
    return pq.PGconn.ping(where.encode()) == pq.Ping.OK


def _comes_back(error: psycopg.Error) -> bool:
    """Whether waiting may help: a wrong password, user or database is wrong for ever."""
    return error.sqlstate is None or not error.sqlstate.startswith(("28", "3D"))
