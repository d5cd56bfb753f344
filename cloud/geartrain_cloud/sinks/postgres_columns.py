"""The columns of a table in PostgreSQL: types, how values go there, and the statements that
make it and write a row.

`geartrain_cloud.sinks.postgres` uses it. Guarantees: texts sort by their bytes, as everywhere else. Of two
records of one key, the canonically later one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from psycopg import sql
from psycopg.types.json import Jsonb

from geartrain.records.codes import Code, Refusal
from geartrain.records.event_time import to_datetime
from geartrain.schema import ColumnBatch, Field, FieldType, Note, Schema
from geartrain.schema.plain import value_reader
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, Layout

_TYPES = {
    FieldType.BOOL: "boolean",
    FieldType.INT64: "bigint",
    FieldType.FLOAT64: "double precision",
    FieldType.STR: 'text COLLATE "C"',
    FieldType.BYTES: "bytea",
    FieldType.DATETIME: "timestamptz",
}
ORDER_TYPES = ("bigint", 'text COLLATE "C"', "bigint", "bytea")


def column_type(field: Field) -> sql.Composable:
    """The type of a column."""
    if field.logical.startswith("decimal("):
        return sql.SQL(f"numeric{field.logical[len('decimal') :]}")
    return sql.SQL("jsonb" if field.logical.startswith("nested(") else _TYPES[field.type])


def converter(field: Field) -> Callable[[Any], Any]:
    """How a value of a column goes to the database."""
    if field.logical.startswith("decimal("):
        scale = int(field.logical[len("decimal(") : -1].split(",")[1])
        return lambda v: None if v is None else Decimal(v).scaleb(-scale)
    if field.logical.startswith("nested("):
        read = value_reader(field)
        return lambda v: None if v is None else Jsonb(read(v), dumps=msgspec.json.encode)
    if field.type is FieldType.DATETIME:
        return _moment
    return lambda v: v


def _moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else to_datetime(time_us)


KEY_BYTES_MAX = 2_600
"""Of one row. An entry of an index of PostgreSQL has 2,704 bytes, with what it needs beside the values."""
_PART_BYTES = 16
"""What a value without a length of its own takes in an index, or a part of a nested one, at the most."""
_HAVE_LENGTHS = (FieldType.STR, FieldType.BYTES)
"""Columns whose values may be long; a key of all others, 32 at the most, always fits."""


def not_kept(layout: Layout, rows: ColumnBatch) -> Mapping[int, Refusal]:
    """The rows that PostgreSQL cannot hold, and why: with a NUL in a text, or with a key that is too long."""
    return {**_keys_too_long(layout, rows), **_with_nul(layout.schema, rows)}


def _keys_too_long(layout: Layout, rows: ColumnBatch) -> Mapping[int, Refusal]:
    key = layout.table.key
    columns = zip(layout.schema.fields, rows.fields, strict=True)
    long = [(field, column) for field, column in columns if field.name in key and field.type in _HAVE_LENGTHS]
    if not long:
        return {}
    sizes = [_PART_BYTES * (len(key) - len(long))] * len(rows)
    for field, column in long:
        read = value_reader(field) if field.logical.startswith("nested(") else None
        for row, value in enumerate(column):
            sizes[row] += _index_bytes(value if read is None else read(value))
    return {
        row: Refusal(
            Code.TOO_LARGE,
            f"its key ({', '.join(key)}) takes {size} bytes, and a key of PostgreSQL may take "
            f"{KEY_BYTES_MAX}: key the table by shorter fields",
        )
        for row, size in enumerate(sizes)
        if size > KEY_BYTES_MAX
    }


def _index_bytes(value: Any) -> int:
    """What a value takes in an index, at the most; it may be packed, which depends on what it holds."""
    if isinstance(value, str):
        return len(value.encode()) + _PART_BYTES
    if isinstance(value, bytes):
        return len(value) + _PART_BYTES
    if isinstance(value, dict):
        return _PART_BYTES + sum(_index_bytes(name) + _index_bytes(part) for name, part in value.items())
    return _PART_BYTES + (sum(map(_index_bytes, value)) if isinstance(value, list) else 0)


_TAKE_OUT = "take NUL out in a step before"


def _with_nul(schema: Schema, rows: ColumnBatch) -> Mapping[int, Refusal]:
    found: dict[int, Refusal] = {}
    for field, column in zip(schema.fields, rows.fields, strict=True):
        reason = f"PostgreSQL cannot hold the NUL character in field {field.name}: {_TAKE_OUT}"
        why = Refusal(Code.NOT_STORABLE, reason)
        if field.logical.startswith("nested("):
            read = value_reader(field)
            found |= {row: why for row, v in enumerate(column) if v is not None and _has_nul(read(v))}
        elif field.type is FieldType.STR:
            found |= {row: why for row, v in enumerate(column) if v is not None and "\0" in v}
    why = Refusal(Code.NOT_STORABLE, "PostgreSQL cannot hold the NUL character in the name of its split")
    return found | {row: why for row, name in enumerate(rows.names) if "\0" in name}


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(name) or _has_nul(part) for name, part in value.items())
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def names_of(names: tuple[str, ...]) -> sql.Composable:
    """Names of columns as a list in a statement."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def insert_of(layout: Layout) -> sql.Composed:
    """The statement that writes one row, unless the table holds a canonically later one of its key."""
    every = (*layout.columns, *ORDER_COLUMNS)
    name = sql.Identifier(layout.table.name)
    values = sql.SQL(", ").join([sql.Placeholder()] * len(every))
    statement = sql.SQL("INSERT INTO {} AS held ({}) VALUES ({})").format(name, names_of(every), values)
    if not layout.primary_key:
        return statement
    changes = sql.SQL(", ").join(
        sql.SQL("{} = excluded.{}").format(sql.Identifier(c), sql.Identifier(c)) for c in every
    )
    new = sql.SQL(", ").join(sql.SQL("excluded.{}").format(sql.Identifier(c)) for c in ORDER_COLUMNS)
    old = sql.SQL(", ").join(sql.SQL("held.{}").format(sql.Identifier(c)) for c in ORDER_COLUMNS)
    tail = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {} WHERE ({}) > ({})")
    return statement + tail.format(names_of(layout.primary_key), changes, new, old)


def comments_of(layout: Layout, old: Schema | None = None) -> list[sql.Composed]:
    """The statements that give the columns of a table their units and descriptions as comments, and take
    away those that fields have no more; old: what the comments were made of, None for none.
    """
    before = {} if old is None else old.notes
    table = sql.Identifier(layout.table.name)
    return [
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
            table, sql.Identifier(one.name), sql.Literal(one.note.text or None)
        )
        for one in layout.schema.fields
        if one.note != before.get(one.name, Note())
    ]


def create_of(layout: Layout, *more: sql.Composable, if_missing: bool = False) -> sql.Composed:
    """The statement that makes a table; more: further columns."""
    parts = [sql.SQL("{} {}").format(sql.Identifier(f.name), column_type(f)) for f in layout.schema.fields]
    parts += [
        sql.SQL("{} {} NOT NULL").format(sql.Identifier(c), sql.SQL(t))
        for c, t in zip(ORDER_COLUMNS, ORDER_TYPES, strict=True)
    ]
    if layout.primary_key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names_of(layout.primary_key)))
    return sql.SQL("CREATE TABLE {} {} ({})").format(
        sql.SQL("IF NOT EXISTS" if if_missing else ""),
        sql.Identifier(layout.table.name),
        sql.SQL(", ").join([*parts, *more]),
    )
