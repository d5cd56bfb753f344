"""What a database says of the tables that flows have made in it: the fields and the key of each.

Under `PostgresTables`, for the databases of users, where tables of others may be. Guarantees: a table that no
flow has made with these columns is never written, and never changed.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg

from geartrain.schema import Schema
from geartrain_cloud.sinks.evolution import Evolution, evolution
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, Layout, TableError
from geartrain_cloud.sinks.postgres_columns import comments_of, create_of
from geartrain_cloud.sinks.postgres_evolution import alter

CATALOG = "_geartrain_tables"
"""The table that says by name which fields, as the text of a schema, and which key each table has."""

_NOTE = (
    f"INSERT INTO {CATALOG} VALUES (%s, %s, %s) ON CONFLICT (name) DO UPDATE SET key = excluded.key, "  # noqa: S608
    "schema = excluded.schema"
)


def declare(db: psycopg.Connection[Any], layout: Layout) -> None:
    """Make a table where there is none; raises `TableError` where there is another of its name."""
    change = _compared(db, layout)
    if change.old is not None and (change.changes or change.old.schema.fields != layout.schema.fields):
        raise _other(layout, change.old.columns)
    _make(db, change.old, layout)


def evolve(db: psycopg.Connection[Any], layout: Layout) -> None:
    """Make a table, or make of the one that is there what is declared; raises `TableError`."""
    change = _compared(db, layout)
    alter(db, change)
    _make(db, change.old, layout)


def planned(db: psycopg.Connection[Any], layout: Layout) -> Evolution:
    """What `evolve` would do; raises `TableError`."""
    return _compared(db, layout)


def _compared(db: psycopg.Connection[Any], layout: Layout) -> Evolution:
    name = layout.table.name
    found = db.execute(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position",
        (name,),
    ).fetchall()
    if not found:
        return Evolution(None, layout)
    columns = tuple(column for (column,) in found)
    held = _noted(db, layout)
    expected = layout if held is None else held  # an earlier version of this program noted nothing
    if set(columns) != {*expected.columns, *ORDER_COLUMNS}:
        raise _other(layout, columns)
    return evolution(expected, layout)


def _noted(db: psycopg.Connection[Any], layout: Layout) -> Layout | None:
    is_there = db.execute("SELECT to_regclass(%s)", (CATALOG,)).fetchone()
    if not is_there or is_there[0] is None:
        return None
    row = db.execute(f"SELECT key, schema FROM {CATALOG} WHERE name = %s", (layout.table.name,)).fetchone()  # noqa: S608
    if row is None:
        return None
    table = type(layout.table)(layout.table.name, tuple(json.loads(row[0])))
    return Layout(layout.sink, table, Schema.from_json(row[1]))


def _make(db: psycopg.Connection[Any], old: Layout | None, layout: Layout) -> None:
    name, schema = layout.table.name, layout.schema.to_json(noted=True)
    if old is None:
        db.execute(create_of(layout, if_missing=True))
    db.execute(
        f"CREATE TABLE IF NOT EXISTS {CATALOG} (name text PRIMARY KEY, key text NOT NULL, "
        "schema text NOT NULL)"
    )
    held = _noted(db, layout)
    if old is None or held is None or held.schema.to_json(noted=True) != schema:
        db.execute(_NOTE, (name, json.dumps(layout.table.key), schema))
    for comment in comments_of(layout, None if old is None or held is None else held.schema):
        db.execute(comment)


def _other(layout: Layout, columns: tuple[str, ...]) -> TableError:
    return TableError(
        f"sink {layout.sink!r}: the database has a table {layout.table.name!r} with other columns "
        f"({', '.join(columns)}): rename the sink, or drop that table"
    )
