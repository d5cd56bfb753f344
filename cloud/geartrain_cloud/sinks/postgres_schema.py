"""The tables of one flow in a PostgreSQL schema of their own: each micro-batch is one transaction.

It stands last on a record's path, in the place of the flow's SQLite file. The rows, the micro-batch's number
and the positions where it ends are committed together.

Guarantees: after a crash, of this program or of the server, the schema holds a micro-batch wholly or not at
all. One that it holds is not written again, also where a connection broke in its commit. No call waits longer
for a lock than it was told. A schema that others made is never touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from geartrain.adapters.layouts import FileLayout
from geartrain.adapters.sqlite import Fault
from geartrain.declarations.sink import Table
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import Binding
from geartrain_cloud.sinks.evolution import Evolution, evolutions, moved_sinks, unwritten
from geartrain_cloud.sinks.layout import SYSTEM_TABLES, AwayError, Layout, TableError, system_layouts
from geartrain_cloud.sinks.limits import check_postgres
from geartrain_cloud.sinks.postgres_columns import comments_of, converter, create_of, insert_of, not_kept
from geartrain_cloud.sinks.postgres_evolution import alter
from geartrain_cloud.sinks.sqlite import QueryProgress

LAYOUT = FileLayout("geartrain-tables", 1, TableError, "name another database in [tables] store")
"""Of the schema's own tables, and of the origins of all rows."""
WRITTEN = "_row"
"""The column that numbers the rows of a table without a key in the order of writing."""

_CONNECT_S_MAX = 2
_SETTINGS = (
    f"application_name=geartrain connect_timeout={_CONNECT_S_MAX} keepalives_idle=5 keepalives_interval=5 "
    "keepalives_count=3 tcp_user_timeout=15000"
)
"""A server that is gone without a word is noticed within some seconds."""

_OWN = (
    "CREATE TABLE _owner (owner text PRIMARY KEY, layout text NOT NULL)",
    """CREATE TABLE _sinks (sink text PRIMARY KEY, name text NOT NULL UNIQUE, key text NOT NULL,
    schema text NOT NULL, records bigint NOT NULL DEFAULT 0)""",
    """CREATE TABLE _queries (query text PRIMARY KEY, checkpoint text NOT NULL, batch_id bigint NOT NULL,
    positions text NOT NULL, log_rows bigint NOT NULL)""",
)
_QUERY = "SELECT checkpoint, batch_id, positions, log_rows FROM _queries WHERE query = %s FOR UPDATE"
_SET_QUERY = (
    "INSERT INTO _queries VALUES (%s, %s, %s, %s, %s) ON CONFLICT (query) DO UPDATE SET checkpoint = "
    "excluded.checkpoint, batch_id = excluded.batch_id, positions = excluded.positions, "
    "log_rows = excluded.log_rows"
)
_ORIGIN_BYTES_MAX, _ORIGIN_HEAD_BYTES = 1_000, 900
"""Of the name and of the path of an origin in the system's own tables; a longer one ends in its digest."""
_NEVER = ("28", "3D", "42501")
"""States of a refusal that stays: password, user, database, rights."""


class SchemaConnection:
    """A connection to one schema, opened again where it broke."""

    def __init__(self, dsn: str, schema: str, wait_s: float) -> None:
        """dsn: as libpq has it, without a password; wait_s: how long a statement waits for a lock."""
        self.schema, self._dsn, self._wait_ms = schema, dsn, max(1, round(wait_s * 1_000))
        self._db: psycopg.Connection[Any] | None = None

    @property
    def place(self) -> str:
        """The schema as sentences name it."""
        return f"schema {self.schema!r} of the platform's PostgreSQL"

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """One transaction, durable when it is left; raises `TableError`, `AwayError` where waiting helps."""
        try:
            if self._db is None or self._db.closed:
                self._db = self._connect()
            with self._db.transaction():
                self._db.execute(
                    "SELECT set_config('search_path', %s, true), set_config('lock_timeout', %s, true), "
                    "set_config('synchronous_commit', 'on', true), set_config('timezone', 'UTC', true)",
                    (f"{_quoted(self.schema)}, pg_catalog", str(self._wait_ms)),
                )
                yield self._db
        except psycopg.Error as error:
            raise self._said(error) from error

    def _connect(self) -> psycopg.Connection[Any]:
        where = make_conninfo(self._dsn, **conninfo_to_dict(_SETTINGS))
        try:
            return psycopg.connect(where)
        except psycopg.OperationalError as error:
            if pq.PGconn.ping(where.encode()) != pq.Ping.OK:
                raise
            try:  # it may have become ready just now
                return psycopg.connect(where)
            except psycopg.OperationalError:
                raise TableError(
                    f"the platform's PostgreSQL refuses this program: {_words(error)}: correct [tables] "
                    "store, or give the password in PGPASSWORD or ~/.pgpass"
                ) from None

    def _said(self, error: psycopg.Error) -> TableError:
        state = error.sqlstate or ""
        if state in ("55P03", "57014", "40P01"):
            return AwayError(f"{self.place} {Fault.IN_USE.value}")
        if state == "53100":
            return AwayError(f"{self.place} {Fault.DISK_FULL.value}")
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state.startswith(
            _NEVER
        ):
            self.close()
            return AwayError(f"{self.place} cannot be reached: {_words(error)}")
        return TableError(f"{self.place}: PostgreSQL refused: {_words(error)}")

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()
        self._db = None


class PostgresSchema:
    """The writing side of one schema, with the face of `OwnTables`. Its positions are kept in memory."""

    def __init__(self, dsn: str, schema: str, owner: str, wait_s: float) -> None:
        """Open or make the schema with the system tables; raises `TableError`.

        owner: a random name of who made it, so that two platforms on one database do not meet; wait_s:
        how long a statement waits for a lock.
        """
        self._link = SchemaConnection(dsn, schema, wait_s)
        self._layouts: dict[str, Layout] = {}
        self._wanted: list[Layout] | None = None
        self._held: dict[str, QueryProgress] = {}
        self._records: dict[str, int] = {}
        try:
            with self._link.transaction() as db:
                self._create(db, owner)
                for (query,) in db.execute("SELECT query FROM _queries").fetchall():
                    self._held[query] = _progress(db, query) or QueryProgress("", -1, {})
            for layout in system_layouts():
                self._declare(layout)
        except BaseException:
            self.close()
            raise

    def _create(self, db: psycopg.Connection[Any], owner: str) -> None:
        encoding = db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise TableError(
                f"the platform's PostgreSQL has encoding {encoding}, which does not hold every text: make a "
                "database with ENCODING 'UTF8', and name it in [tables] store"
            )
        if not _exists(db, self._link.schema):
            db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._link.schema)))
            for statement in _OWN:
                db.execute(sql.SQL(statement))
            db.execute("INSERT INTO _owner VALUES (%s, %s)", (owner, LAYOUT.text))
        check_owner(db, self._link, owner)

    @property
    def place(self) -> str:
        """Where they are, as a sentence names it."""
        return self._link.place

    def declare(self, sink_id: str, table: Table, schema: Schema) -> None:
        """Say where the records of `sink_id` come to rest, and make the table if there is none yet.

        Raises `TableError` when the table cannot be kept, or the schema holds another one of this name.
        """
        self._declare(Layout(sink_id, table, schema))

    def _declare(self, layout: Layout) -> None:
        check_postgres(layout)
        name, key = layout.table.name, json.dumps(layout.table.key)
        with self._link.transaction() as db:
            held = db.execute(
                "SELECT sink, name, key, schema, records FROM _sinks "
                "WHERE sink = %s OR lower(name) = lower(%s)",
                (layout.sink, name),
            ).fetchall()
            if not held:
                _make(db, layout)
            elif [(*one[:3], Schema.from_json(one[3])) for one in held] != [
                (layout.sink, name, key, layout.schema)
            ]:
                raise TableError(
                    f"{self._link.place} holds table {held[0][1]!r} of sink {held[0][0]!r} with another "
                    f"name, key or fields than sink {layout.sink!r} has: rename the table, or submit the app "
                    "anew"
                )
            else:
                _note_again(db, layout, Schema.from_json(held[0][3]))
        self._layouts[layout.sink] = layout
        self._records[layout.sink] = held[0][4] if held else 0

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        for layout in layouts:
            check_postgres(layout)
        with self._link.transaction() as db:
            return evolutions(_held_layouts(db), layouts)

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these from the next micro-batch on that is written, in its transaction.

        Raises `TableError` for a table that cannot be kept. One that cannot be evolved is refused by `write`.
        """
        for layout in layouts:
            check_postgres(layout)
        self._layouts = {layout.sink: layout for layout in (*system_layouts(), *layouts)}
        self._wanted = list(layouts)

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind `query` to the checkpoint named `checkpoint`; `has_run`: it holds a micro-batch already.

        Raises `TableError` when they do not belong together.
        """
        with self._link.transaction() as db:
            held = _progress(db, query)
            mark = None if held is None else held.mark
            if self._binding(query).check_checkpoint(mark, checkpoint, has_run=has_run):
                held = QueryProgress(checkpoint, -1, {})
                _set_progress(db, query, held)
        if held is not None:
            self._held[query] = held

    def _binding(self, query: str) -> Binding:
        return Binding(f"query {query!r}", self._link.place, "database")

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """Rows that PostgreSQL cannot hold; those of the system's own tables are changed so that it can."""
        return {} if sink_id in SYSTEM_TABLES else not_kept(self._layouts[sink_id], rows)

    def write(
        self,
        query: str,
        batch_id: int,
        positions: Mapping[str, int],
        rows: Mapping[str, Sequence[ColumnBatch]],
        log_rows: int = 0,
    ) -> bool:
        """Write micro-batch `batch_id`, which ends at `positions`, in one durable transaction.

        log_rows: rows of the log that it was made of. False where the schema holds that micro-batch already.
        The tables become those of `evolve` before.
        Raises `TableError`, also for a micro-batch that leaves a gap or repeats the last one elsewhere.
        """
        if unknown := sorted(set(rows) - set(self._layouts)):
            raise TableError(f"query {query!r} writes to {unknown[0]!r}, which is not a declared sink")
        with self._link.transaction() as db:
            held = _progress(db, query) or QueryProgress("", -1, {})
            is_held = self._binding(query).holds(held.mark, batch_id, positions)
            if not is_held:
                if self._wanted is not None:
                    _evolve(db, self._wanted)
                for sink, batches in rows.items():
                    self._insert(db, self._layouts[sink], batches)
                held = QueryProgress(held.checkpoint, batch_id, dict(positions), held.log_rows + log_rows)
                _set_progress(db, query, held)
            records = dict(db.execute("SELECT sink, records FROM _sinks").fetchall())
        self._held[query], self._records = held, records
        self._wanted = self._wanted if is_held else None
        return not is_held

    def _insert(self, db: psycopg.Connection[Any], layout: Layout, batches: Sequence[ColumnBatch]) -> None:
        converters = [converter(field) for field in layout.schema.fields]
        width = len(converters)
        written = (
            (*(c(v) for c, v in zip(converters, row[:width], strict=True)), *row[width:])
            for row in layout.rows(batches)
        )
        if layout.sink in SYSTEM_TABLES:
            written = (_holdable(row) for row in written)
        with db.cursor() as cursor:
            cursor.executemany(insert_of(layout), written)
        count = sum(map(len, batches))
        db.execute("UPDATE _sinks SET records = records + %s WHERE sink = %s", (count, layout.sink))

    def positions(self, query: str) -> dict[str, int]:
        """Up to which position the schema holds what `query` made; empty for none."""
        held = self._held.get(query)
        return {} if held is None else dict(held.positions)

    def progress(self, query: str) -> QueryProgress | None:
        """Where `query` stands, None where it was not attached."""
        return self._held.get(query)

    def records(self) -> dict[str, int]:
        """Records written so far, by sink: each exactly once, those replaced by a later one included."""
        return dict(sorted(self._records.items()))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def drop_schema(dsn: str, schema: str, owner: str, wait_s: float) -> None:
    """Remove a schema with all that is in it; one that is gone is no error.

    Raises `TableError`, also for one that somebody else made.
    """
    link = SchemaConnection(dsn, schema, wait_s)
    try:
        with link.transaction() as db:
            if _exists(db, schema):
                check_owner(db, link, owner)
                db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    finally:
        link.close()


def check_owner(db: psycopg.Connection[Any], link: SchemaConnection, owner: str) -> None:
    """Raise `TableError` unless this platform made the schema, in a layout that this program writes."""
    is_ours = db.execute("SELECT to_regclass(%s)", (f"{_quoted(link.schema)}._owner",)).fetchone()
    found = db.execute("SELECT owner, layout FROM _owner").fetchone() if is_ours and is_ours[0] else None
    if found is None or found[0] != owner:
        raise TableError(
            f"{link.place} was made by somebody else: give this platform a database of its own in "
            "[tables] store"
        )
    LAYOUT.check(found[1], link.place)


def _exists(db: psycopg.Connection[Any], schema: str) -> bool:
    return (
        db.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        is not None
    )


def _held_layouts(db: psycopg.Connection[Any]) -> list[Layout]:
    """The tables of the schema, without those that every schema has."""
    found = db.execute("SELECT sink, name, key, schema FROM _sinks").fetchall()
    return [
        Layout(sink, Table(name, tuple(json.loads(key))), Schema.from_json(schema))
        for sink, name, key, schema in found
        if sink not in SYSTEM_TABLES
    ]


def _make(db: psycopg.Connection[Any], layout: Layout) -> None:
    number = sql.SQL("{} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY").format(sql.Identifier(WRITTEN))
    db.execute(create_of(layout, *([] if layout.primary_key else [number])))
    schema = layout.schema.to_json(noted=True)
    values = (layout.sink, layout.table.name, json.dumps(layout.table.key), schema)
    db.execute("INSERT INTO _sinks (sink, name, key, schema) VALUES (%s, %s, %s, %s)", values)
    for comment in comments_of(layout):
        db.execute(comment)


def _note_again(db: psycopg.Connection[Any], layout: Layout, old: Schema) -> None:
    """Note what the fields of a table are by now, with their units and descriptions; old: what they were."""
    values = (layout.schema.to_json(noted=True), layout.table.name)
    db.execute("UPDATE _sinks SET schema = %s WHERE name = %s AND schema != %s", (*values, values[0]))
    for comment in comments_of(layout, old):
        db.execute(comment)


def _evolve(db: psycopg.Connection[Any], wanted: Sequence[Layout]) -> None:
    """Make the tables of the schema those of `wanted`; others stay as they are. Raises `TableError`."""
    held = _held_layouts(db)
    moved = moved_sinks(held, wanted)
    for name, _ in moved:  # at first none has an id that another one may want
        db.execute("UPDATE _sinks SET sink = %s WHERE name = %s", (unwritten(name), name))
    for name, sink in moved:
        db.execute("UPDATE _sinks SET sink = %s WHERE name = %s", (sink, name))
    for one in evolutions(held, wanted):
        if one.new is None:
            continue
        if one.old is None:
            _make(db, one.new)
        else:
            alter(db, one)
            _note_again(db, one.new, one.old.schema)


def _progress(db: psycopg.Connection[Any], query: str) -> QueryProgress | None:
    row = db.execute(_QUERY, (query,)).fetchone()
    return None if row is None else QueryProgress(row[0], row[1], json.loads(row[2]), row[3])


def _set_progress(db: psycopg.Connection[Any], query: str, at: QueryProgress) -> None:
    ends = json.dumps(dict(at.positions), sort_keys=True)
    db.execute(_SET_QUERY, (query, at.checkpoint, at.batch_id, ends, at.log_rows))


def _holdable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of the system's own tables as PostgreSQL can hold it: without NUL, and its origin, which is a
    part of its key, no longer than an index takes.
    """
    *values, name, number, path = row
    texts = [
        one.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(one, str) else one for one in values
    ]
    name = name.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(encoded := name.encode()) > _ORIGIN_BYTES_MAX:
        name = encoded[:_ORIGIN_HEAD_BYTES].decode(errors="ignore") + _digest(encoded).hex()
    if len(path) > _ORIGIN_BYTES_MAX:  # the path of a window's result begins with its key
        path = path[:_ORIGIN_HEAD_BYTES] + _digest(path)
    return (*texts, name, number, path)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _words(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
