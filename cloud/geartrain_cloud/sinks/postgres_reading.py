"""The reading side of tables in a PostgreSQL schema: the same rows as those of an SQLite file.

It stands after the end of a record's path: control reads here, while a host writes. Guarantees: a reader sees
whole micro-batches only, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from geartrain.records.event_time import format_time, from_datetime
from geartrain.schema import Field, FieldType, Schema
from geartrain.schema.plain import value_reader
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, TableError
from geartrain_cloud.sinks.postgres_columns import names_of
from geartrain_cloud.sinks.postgres_schema import WRITTEN, SchemaConnection

_WAIT_S = 5.0


class PostgresReader:
    """The tables in one schema; each call opens and closes a connection."""

    def __init__(self, dsn: str, schema: str) -> None:
        """dsn: as libpq has it, without a password."""
        self._dsn, self._schema = dsn, schema

    def names(self) -> list[str]:
        """The names of the tables, sorted."""
        with self._reading() as db:
            return sorted(name for (name,) in db.execute("SELECT name FROM _sinks").fetchall())

    def columns(self, table: str) -> list[str]:
        """The fields of a table, in the order of their declaration."""
        with self._reading() as db:
            return [field.name for field in _declared(db, table)[0].fields]

    def row_count(self, table: str) -> int:
        """How many rows a table has."""
        with self._reading() as db:
            _declared(db, table)
            counted = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            found = db.execute(counted).fetchone()
            return 0 if found is None else int(found[0])

    def page(self, table: str, skip: int, count_max: int) -> list[dict[str, Any]]:
        """At most `count_max` rows sorted by their fields (None first), without the first `skip`."""
        with self._reading() as db:
            schema, _ = _declared(db, table)
            order = sql.SQL(", ").join([*map(_order, schema.fields), names_of(ORDER_COLUMNS)])
            statement = _select(schema, table) + sql.SQL(" ORDER BY {} LIMIT %s OFFSET %s").format(order)
            return _rows(schema, db.execute(statement, (count_max, skip)).fetchall())

    def rows_after(self, table: str, after: int | None, count_max: int) -> tuple[list[dict[str, Any]], int]:
        """Rows of a table without a key in the order of writing, as `geartrain_cloud.sinks.tables` has it."""
        with self._reading() as db:
            schema, key = _declared(db, table)
            if key:
                raise TableError(
                    f"table {table!r} has a key: its rows are replaced and have no order of writing"
                )
            statement = _select(schema, table, WRITTEN)
            number = sql.Identifier(WRITTEN)
            if after is None:
                newest = statement + sql.SQL(" ORDER BY {} DESC LIMIT %s").format(number)
                found = db.execute(newest, (count_max,)).fetchall()[::-1]
            else:
                later = statement + sql.SQL(" WHERE {} > %s ORDER BY {} LIMIT %s").format(number, number)
                found = db.execute(later, (after, count_max)).fetchall()
            return _rows(schema, [row[1:] for row in found]), found[-1][0] if found else after or 0

    @contextmanager
    def _reading(self) -> Iterator[psycopg.Connection[Any]]:
        link = SchemaConnection(self._dsn, self._schema, _WAIT_S)
        try:
            with link.transaction() as db:
                db.execute("SELECT set_config('transaction_read_only', 'on', true)")
                yield db
        finally:
            link.close()


def _declared(db: psycopg.Connection[Any], table: str) -> tuple[Schema, list[str]]:
    """Schema and key of a table; raises `TableError` where there is none of its name."""
    found = db.execute("SELECT schema, key FROM _sinks WHERE name = %s", (table,)).fetchone()
    if found is None:
        names = sorted(name for (name,) in db.execute("SELECT name FROM _sinks").fetchall())
        raise TableError(f"there is no table {table!r}; the tables: {', '.join(names)}")
    return Schema.from_json(found[0]), json.loads(found[1])


def _select(schema: Schema, table: str, *first: str) -> sql.Composed:
    names = (*first, *(field.name for field in schema.fields))
    return sql.SQL("SELECT {} FROM {}").format(names_of(names), sql.Identifier(table))


def _order(field: Field) -> sql.Composable:
    """None first, and a NaN, which a file cannot hold and which is shown as None, as None."""
    is_float = field.type is FieldType.FLOAT64
    form = "NULLIF({}, 'NaN'::double precision) NULLS FIRST" if is_float else "{} NULLS FIRST"
    return sql.SQL(form).format(sql.Identifier(field.name))


def _rows(schema: Schema, rows: list[Any]) -> list[dict[str, Any]]:
    readers = [(field.name, _reader(field)) for field in schema.fields]
    return [
        {
            name: None if value is None else read(value)
            for (name, read), value in zip(readers, row, strict=True)
        }
        for row in rows
    ]


def _reader(field: Field) -> Callable[[Any], Any]:
    """How a value that PostgreSQL gives becomes one of JSON."""
    if field.logical.startswith("decimal("):
        return str
    if field.logical.startswith("nested("):
        return lambda value: value
    if field.type is FieldType.DATETIME:
        return lambda moment: format_time(from_datetime(moment))
    return value_reader(field)
