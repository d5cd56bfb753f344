"""The row of a table that a key names, with the place that it has in canonical order.

On the reading side of an SQLite file of tables. Guarantees: a key is read by the types of the table's fields;
whatever does not fit is one sentence.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain.records.event_time import parse_time
from geartrain.schema import Field, FieldType, Schema
from geartrain.schema.plain import value_reader
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.places import Place
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, SYSTEM_TABLES, TableError, quoted

_BUSY_S = 30.0
_INT_END = 1 << 63


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row. sink: the id of the step that wrote it; count: how many rows the key names, this being the
    canonically last of them.
    """

    sink: str
    row: Mapping[str, Any]
    place: Place
    count: int


def find_row(path: Path, table: str, key: str) -> HeldRow:
    """The row of `table` in the file at `path` that `key` names; raises `ExplainError` and `TableError`.

    key: `NAME=VALUE` of any fields with commas between, or the values of the table's key in their order.
    """
    with closing(_open(path)) as db, translated(TableError, f"the file of tables {path}"):
        found = db.execute("SELECT sink, schema, key FROM _sinks WHERE name = ?", (table,)).fetchone()
        if found is None:
            known = ", ".join(sorted(name for (name,) in db.execute("SELECT name FROM _sinks")))
            raise ExplainError(f"there is no table {table!r}; the tables: {known}")
        sink, schema, keyed_by = found[0], Schema.from_json(found[1]), json.loads(found[2])
        if sink in SYSTEM_TABLES:
            raise ExplainError(f"table {table} holds what was refused: gear deadletters shows it")
        where = _where(table, schema, keyed_by, key)
        chosen = " AND ".join(f"{quoted(name)} IS ?" for name in where)
        values = tuple(where.values())
        [(count,)] = db.execute(f"SELECT count(*) FROM {quoted(table)} WHERE {chosen}", values)  # noqa: S608
        if not count:
            raise ExplainError(f"table {table} has no row {key}")
        names = ", ".join(map(quoted, (*(f.name for f in schema.fields), *ORDER_COLUMNS)))
        order = ", ".join(f"{name} DESC" for name in ORDER_COLUMNS)
        query = f"SELECT {names} FROM {quoted(table)} WHERE {chosen} ORDER BY {order} LIMIT 1"  # noqa: S608
        row = db.execute(query, values).fetchone()
    time, name, number, origin_path = row[-4:]
    return HeldRow(sink, json_row(schema, row[:-4]), (time, name, number, bytes(origin_path)), count)


def json_row(schema: Schema, values: Any) -> dict[str, Any]:
    """The columns of a row as JSON has them."""
    fields = zip(schema.fields, values, strict=True)
    return {field.name: None if value is None else value_reader(field)(value) for field, value in fields}


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise ExplainError("the app has no tables yet: see gear info")
    with translated(TableError, f"the file of tables {path}"):
        return open_to_read(path, busy_s=_BUSY_S)


def _where(table: str, schema: Schema, keyed_by: list[str], key: str) -> dict[str, Any]:
    fields = {field.name: field for field in schema.fields}
    first = key.partition("=")[0]
    if first in fields and "=" in key:
        pairs = [part.partition("=") for part in key.split(",")]
        given = {name.strip(): value for name, _, value in pairs}
    elif not keyed_by:
        raise ExplainError(
            f"table {table} has no key: name a row by fields, NAME=VALUE,...; there are {', '.join(fields)}"
        )
    else:
        values = [key] if len(keyed_by) == 1 else key.split(",")
        if len(values) != len(keyed_by):
            raise ExplainError(
                f"table {table} has the key {', '.join(keyed_by)}: give {len(keyed_by)} values with commas "
                f"between, not {len(values)}, or NAME=VALUE,..."
            )
        given = dict(zip(keyed_by, values, strict=True))
    for name in given:
        if name not in fields:
            raise ExplainError(f"table {table} has no field {name!r}; its fields: {', '.join(fields)}")
    return {name: _value(table, fields[name], text) for name, text in given.items()}


def _value(table: str, field: Field, text: str) -> Any:
    """A text as the column holds it."""
    if field.optional and not text:
        return None
    try:
        value = _read(field, text)
        if isinstance(value, int) and not -_INT_END <= value < _INT_END:
            raise ValueError(text)
        return value
    except (ArithmeticError, ValueError):
        raise ExplainError(
            f"table {table}: {field.name} is a {field.logical or field.type.value}, not {text[:80]!r}"
        ) from None


def _read(field: Field, text: str) -> Any:
    if field.logical.startswith("decimal("):
        scale = int(field.logical[len("decimal(") : -1].split(",")[1])
        unscaled = Decimal(text).scaleb(scale)
        if unscaled != int(unscaled):
            raise ValueError(text)
        return int(unscaled)
    if field.type is FieldType.BOOL:
        return {"true": 1, "false": 0}[text.lower()] if text.lower() in ("true", "false") else int(text)
    if field.type is FieldType.INT64:
        return int(text)
    if field.type is FieldType.FLOAT64:
        return float(text)
    if field.type is FieldType.BYTES:
        return bytes.fromhex(text)
    return parse_time(text) if field.type is FieldType.DATETIME else text
