"""The reading side of a flow's tables, and the JSON that every run prints of them.

It stands after the end of a record's path: pages, `gear` and tests read here, while a host writes.
Guarantees: a reader sees whole micro-batches only. Equal rows give equal bytes, in whatever order they were
written.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.sqlite import open_to_read, translated
from geartrain.records.event_time import format_time
from geartrain.schema import Schema
from geartrain.schema.plain import value_reader
from geartrain_cloud.sinks.layout import EVENT_TIME, ORDER_COLUMNS, TableError, quoted

_BUSY_S = 30.0


def table_names(path: str | Path) -> list[str]:
    """The names of the tables in the file, sorted; raises `TableError`."""
    with closing(_open(path)) as db:
        return sorted(name for (name,) in _fetch(db, path, "SELECT name FROM _sinks"))


def rows(
    path: str | Path,
    table: str,
    where: Mapping[str, Any] | None = None,
    *,
    canonical: bool = False,
    timed: bool = False,
) -> list[dict[str, Any]]:
    """The rows of `table` as JSON values, one dictionary a row, fields in the order of their declaration.

    They are sorted by their fields in that order (None first, strings by code point), then by their place in
    canonical order. With `canonical` they are sorted by their place alone, the order that a keyed step saw.
    where: only rows whose columns equal these values. With `timed` the event time of each row stands before
    its fields, as `_event_time`.

    How values are written: `geartrain.schema.plain`. Raises `TableError` when there is no such file, table or
    field.
    """
    with closing(_open(path)) as db:
        schema, _ = _declared(db, path, table)
        names, times = [f.name for f in schema.fields], [EVENT_TIME] if timed else []
        if unknown := sorted(set(where or {}) - set(names)):
            raise TableError(f"table {table!r} has no field {unknown[0]!r}; its fields: {', '.join(names)}")
        chosen = f"WHERE {' AND '.join(f'{quoted(n)} IS ?' for n in where)} " if where else ""
        statement = f"SELECT {_list([*times, *names])} FROM {quoted(table)} {chosen}"  # noqa: S608
        statement += f"ORDER BY {_list(ORDER_COLUMNS if canonical else (*names, *ORDER_COLUMNS))}"
        held = _fetch(db, path, statement, tuple((where or {}).values()))
    readers = [(f.name, value_reader(f)) for f in schema.fields]
    return [_as_json([*((name, format_time) for name in times), *readers], row) for row in held]


def page(path: str | Path, table: str, skip: int, count_max: int) -> list[dict[str, Any]]:
    """At most `count_max` of `rows(path, table)`, in that order, without the first `skip`.

    Each page is of the moment when it is asked for. Raises `TableError`.
    """
    with closing(_open(path)) as db:
        schema, _ = _declared(db, path, table)
        names = [f.name for f in schema.fields]
        statement = f"SELECT {_list(names)} FROM {quoted(table)} "  # noqa: S608
        statement += f"ORDER BY {_list((*names, *ORDER_COLUMNS))} LIMIT ? OFFSET ?"
        held = _fetch(db, path, statement, (count_max, skip))
    readers = [(f.name, value_reader(f)) for f in schema.fields]
    return [_as_json(readers, row) for row in held]


def columns(path: str | Path, table: str) -> list[str]:
    """The fields of a table, in the order of their declaration; raises `TableError`."""
    with closing(_open(path)) as db:
        return [f.name for f in _declared(db, path, table)[0].fields]


def row_count(path: str | Path, table: str) -> int:
    """How many rows a table has; raises `TableError`."""
    with closing(_open(path)) as db:
        _declared(db, path, table)
        return int(_fetch(db, path, f"SELECT count(*) FROM {quoted(table)}")[0][0])  # noqa: S608


def rows_after(
    path: str | Path, table: str, after: int | None, count_max: int
) -> tuple[list[dict[str, Any]], int]:
    """Rows of a table without a key in the order in which they were written, and where that leaves a reader.

    after: what the last call returned, 0 for the first row on, None for the newest rows of the table; at most
    `count_max` rows. A row that is written later comes later, whatever its event time, so that one who asks
    again with what he got back misses none and sees none twice. Raises `TableError`, also for a table with a
    key, whose rows are replaced.
    """
    with closing(_open(path)) as db:
        schema, key = _declared(db, path, table)
        if key:
            raise TableError(f"table {table!r} has a key: its rows are replaced and have no order of writing")
        names = [f.name for f in schema.fields]
        statement = f"SELECT _rowid_, {_list(names)} FROM {quoted(table)} "  # noqa: S608
        if after is None:
            held = _fetch(db, path, f"{statement} ORDER BY _rowid_ DESC LIMIT ?", (count_max,))[::-1]
        else:
            held = _fetch(
                db, path, f"{statement} WHERE _rowid_ > ? ORDER BY _rowid_ LIMIT ?", (after, count_max)
            )
    readers = [(f.name, value_reader(f)) for f in schema.fields]
    return [_as_json(readers, row[1:]) for row in held], held[-1][0] if held else after or 0


def counts(path: str | Path, table: str, by: Sequence[str]) -> list[dict[str, Any]]:
    """How many rows a table has of each combination of the fields `by`, as `count`; sorted by these fields.

    Raises `TableError`.
    """
    with closing(_open(path)) as db:
        schema, _ = _declared(db, path, table)
        fields = {f.name: f for f in schema.fields}
        if unknown := sorted(set(by) - set(fields)):
            raise TableError(f"table {table!r} has no field {unknown[0]!r}; its fields: {', '.join(fields)}")
        chosen = _list(by)
        statement = f"SELECT {chosen}, COUNT(*) FROM {quoted(table)} GROUP BY {chosen} ORDER BY {chosen}"  # noqa: S608
        held = _fetch(db, path, statement)
    readers = [(name, value_reader(fields[name])) for name in by]
    return [_as_json(readers, row[:-1]) | {"count": row[-1]} for row in held]


def _as_json(readers: Sequence[tuple[str, Callable[[Any], Any]]], row: Sequence[Any]) -> dict[str, Any]:
    return {n: None if v is None else read(v) for (n, read), v in zip(readers, row, strict=True)}


def _declared(db: sqlite3.Connection, path: str | Path, table: str) -> tuple[Schema, tuple[str, ...]]:
    """The schema and the key of a table."""
    found = _fetch(db, path, "SELECT schema, key FROM _sinks WHERE name = ?", (table,))
    if not found:
        listed = ", ".join(sorted(n for (n,) in _fetch(db, path, "SELECT name FROM _sinks"))) or "none"
        raise TableError(f"there is no table {table!r} in {path}; its tables: {listed}")
    return Schema.from_json(found[0][0]), tuple(json.loads(found[0][1]))


def json_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The output contract: UTF-8, indented by one, nothing escaped that need not be, a newline at the end."""
    return (json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(rows: Iterable[Mapping[str, Any]], path: str | Path) -> None:
    """Write `json_bytes(rows)` to `path`, which others see wholly or not at all; raises `TableError`."""
    content = json_bytes(rows)
    try:
        write_private(Path(path), content)
    except OSError as error:
        raise TableError(f"{path} cannot be written ({error.strerror or error})") from error


def _open(path: str | Path) -> sqlite3.Connection:
    if not Path(path).is_file():
        raise TableError(f"there are no tables at {path}: run the flow first")
    with _errors(path):
        return open_to_read(Path(path), busy_s=_BUSY_S)


def _fetch(
    db: sqlite3.Connection, path: str | Path, statement: str, values: tuple[Any, ...] = ()
) -> list[Any]:
    with _errors(path):
        return db.execute(statement, values).fetchall()


def _errors(path: str | Path) -> AbstractContextManager[None]:
    return translated(TableError, f"the file of tables {path}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
