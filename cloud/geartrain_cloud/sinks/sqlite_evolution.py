"""Change the tables in an SQLite file to those of a revision, within the transaction of a micro-batch.

Under `SqliteTables`. A column that comes and holds null, a whole number, a text or bytes is added in place.
For every other change the table is written anew.

Guarantees: the caller's transaction holds all of it, so that a crash leaves the old tables or the new ones.
Rows keep their order of writing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from geartrain.declarations.sink import Table
from geartrain.schema import Schema
from geartrain_cloud.sinks.evolution import Evolution, evolutions, moved_sinks, unwritten
from geartrain_cloud.sinks.layout import (
    ORDER_COLUMNS,
    SYSTEM_TABLES,
    Layout,
    column_type,
    may_be_null,
    quoted,
)

_ANEW = "_anew"
"""The name of a table while it is written; no sink has such a name."""


def held_layouts(database: sqlite3.Connection) -> list[Layout]:
    """The tables that a file has, without those that every file has."""
    found = database.execute("SELECT sink, name, key, schema FROM _sinks").fetchall()
    return [
        Layout(sink, Table(name, tuple(json.loads(key))), Schema.from_json(schema))
        for sink, name, key, schema in found
        if sink not in SYSTEM_TABLES
    ]


def evolve(database: sqlite3.Connection, wanted: Sequence[Layout]) -> None:
    """Make the tables of a file those of `wanted`; raises `TableError` where one cannot be.

    Tables that are not wanted stay as they are.
    """
    held = held_layouts(database)
    _move_sinks(database, moved_sinks(held, wanted))
    for one in evolutions(held, wanted):
        if one.new is None:
            continue
        if one.old is None:
            database.execute(one.new.create)
            declare(database, one.new)
            continue
        if one.changes:
            _change(database, one, one.old, one.new)
        note_again(database, one.new)


def declare(database: sqlite3.Connection, layout: Layout) -> None:
    """Note a table that was made."""
    values = (layout.sink, layout.table.name, json.dumps(layout.table.key), layout.schema.to_json(noted=True))
    database.execute("INSERT INTO _sinks (sink, name, key, schema) VALUES (?, ?, ?, ?)", values)


def note_again(database: sqlite3.Connection, layout: Layout) -> None:
    """Note the units and descriptions that the fields of a table have by now."""
    values = (layout.schema.to_json(noted=True), layout.table.name)
    database.execute("UPDATE _sinks SET schema = ?1 WHERE name = ?2 AND schema != ?1", values)


def _move_sinks(database: sqlite3.Connection, moved: Sequence[tuple[str, str]]) -> None:
    for name, _ in moved:  # at first none has an id that another one may want
        database.execute("UPDATE _sinks SET sink = ? WHERE name = ?", (unwritten(name), name))
    for name, sink in moved:
        database.execute("UPDATE _sinks SET sink = ? WHERE name = ?", (sink, name))


def _change(database: sqlite3.Connection, change: Evolution, old: Layout, new: Layout) -> None:
    name = quoted(new.table.name)
    loosened = [now for was, now in change.widened if may_be_null(now) and not may_be_null(was)]
    literals = [_literal(new.defaults.get(one.name)) for one in change.added]
    if change.dropped or loosened or None in literals:
        _write_anew(database, old, new)
        return
    for one, literal in zip(change.added, literals, strict=True):
        needed = "" if may_be_null(one) else " NOT NULL"
        database.execute(
            f"ALTER TABLE {name} ADD COLUMN {quoted(one.name)} {column_type(one)}{needed} DEFAULT {literal}"
        )


def _write_anew(database: sqlite3.Connection, old: Layout, new: Layout) -> None:
    before, every = set(old.columns), [*new.columns, *ORDER_COLUMNS]
    values = [new.defaults.get(column) for column in new.columns if column not in before]
    taken = [quoted(c) if c in before or c in ORDER_COLUMNS else "?" for c in every]
    into = list(map(quoted, every))
    if not new.primary_key:
        into, taken = ["_rowid_", *into], ["_rowid_", *taken]
    database.execute(new.create_as(_ANEW))
    copied = f"SELECT {', '.join(taken)} FROM {quoted(old.table.name)}"  # noqa: S608
    if not new.primary_key:
        copied += " ORDER BY _rowid_"
    database.execute(f"INSERT INTO {quoted(_ANEW)} ({', '.join(into)}) {copied}", values)
    database.execute(f"DROP TABLE {quoted(old.table.name)}")
    database.execute(f"ALTER TABLE {quoted(_ANEW)} RENAME TO {quoted(new.table.name)}")


def _literal(value: Any) -> str | None:
    """A value in SQL, None where SQL has no exact one: for a float, and for a text with a NUL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    return None
