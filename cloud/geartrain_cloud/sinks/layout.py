"""How a sink's records lie in SQLite: the columns of its table, its key, and the statement that writes a row.

It stands between a flow's declared tables and the SQL that keeps them.

Guarantees: a value comes back as it went in, bit for bit, except NaN, which SQLite stores as NULL. Of two
records of one key, the canonically later one stays, in whatever order they are written. Canonical order is
(event time, origin), see geartrain.records.batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from typing import Any

from geartrain.declarations.sink import Sink, Table
from geartrain.errors import ConfigError, GeartrainError
from geartrain.graph.graph import DEAD_LETTERS, LATE, OVERTAKEN
from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, Field, FieldType, Schema, derive

EVENT_TIME = "_event_time"
ORDER_COLUMNS = (EVENT_TIME, "_origin_name", "_origin_number", "_origin_path")
"""Hidden columns of every table: the record's place in canonical order."""

SYSTEM_TABLES = {
    DEAD_LETTERS: Table("dead_letters"),
    LATE: Table("late"),
    OVERTAKEN: Table("overtaken"),
}
"""The tables that every flow has, by system sink; a row is one per (step, event time, origin)."""

_TYPES = {
    FieldType.BOOL: "INTEGER",
    FieldType.INT64: "INTEGER",
    FieldType.FLOAT64: "",  # without affinity, because a REAL column turns -0.0 into 0.0
    FieldType.STR: "TEXT",
    FieldType.BYTES: "BLOB",
    FieldType.DATETIME: "INTEGER",
}
_HIDDEN_TYPES = ("INTEGER", "TEXT", "INTEGER", "BLOB")
_ORDER_OF = itemgetter(-4, -3, -2, -1)

Row = tuple[Any, ...]


class TableError(GeartrainError):
    """A table cannot be declared, written or read; names the file or table and what to do."""


class AwayError(TableError):
    """Tables cannot be reached or are locked: to try again helps."""


@contextmanager
def table_errors() -> Iterator[None]:
    """What is refused of a sink's options is refused of its table."""
    try:
        yield
    except ConfigError as error:
        raise TableError(str(error)) from None


@dataclass(frozen=True)
class Layout:
    """One sink's table.

    Args:
        sink: the id of its step.
        table: the sink as it was declared.
        schema: that of its records.
        defaults: by field, what a row gets that was written before the record had the field; as a column
            holds it.
    """

    sink: str
    table: Sink
    schema: Schema
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def check(self) -> None:
        """Raise `TableError` for a table that cannot be kept."""
        if self.sink not in SYSTEM_TABLES:
            with table_errors():
                self.table.check(self.sink, self.schema)

    def check_complete(self) -> None:
        """Raise `TableError` as `check`, and for a sink that lacks an option."""
        with table_errors():
            self.table.check_complete(self.sink)
        self.check()

    @property
    def columns(self) -> tuple[str, ...]:
        """The record's fields, in the order of their declaration."""
        return tuple(f.name for f in self.schema.fields)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """What names a row; empty where every record is a row of its own."""
        return ("step", *ORDER_COLUMNS) if self.sink in SYSTEM_TABLES else self.table.key

    @property
    def create(self) -> str:
        """The statement that makes the table."""
        return self.create_as(self.table.name)

    def create_as(self, name: str) -> str:
        """The statement that makes the table under another name."""
        parts = [
            f"{quoted(f.name)} {column_type(f)}{'' if may_be_null(f) else ' NOT NULL'}"
            for f in self.schema.fields
        ]
        parts += [f"{c} {t} NOT NULL" for c, t in zip(ORDER_COLUMNS, _HIDDEN_TYPES, strict=True)]
        if self.primary_key:
            parts.append(f"PRIMARY KEY ({_list(self.primary_key)})")
        tail = " WITHOUT ROWID" if self.primary_key else ""
        return f"CREATE TABLE {quoted(name)} ({', '.join(parts)}){tail}"

    @cached_property
    def insert(self) -> str:
        """The statement that writes one row, unless the table holds a canonically later one of its key."""
        name, every = quoted(self.table.name), (*self.columns, *ORDER_COLUMNS)
        values = ", ".join("?" * len(every))
        statement = f"INSERT INTO {name} ({_list(every)}) VALUES ({values})"  # noqa: S608
        if not self.primary_key:
            return statement
        if self.sink in SYSTEM_TABLES:  # a row of this key is this very record
            return f"{statement} ON CONFLICT DO NOTHING"
        changes = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in every if c not in self.primary_key)
        new = ", ".join(f"excluded.{c}" for c in ORDER_COLUMNS)
        held = ", ".join(f"{name}.{c}" for c in ORDER_COLUMNS)
        return f"{statement} ON CONFLICT DO UPDATE SET {changes} WHERE ({new}) > ({held})"

    def rows(self, batches: Iterable[ColumnBatch]) -> Iterable[Row]:
        """The rows to write for `batches`: of an upsert table only the canonically last one of each key."""
        every = (row for batch in batches for row in _rows(batch))
        return self._newest(every) if self.primary_key else every

    def _newest(self, rows: Iterable[Row]) -> Iterable[Row]:
        every = (*self.columns, *ORDER_COLUMNS)
        key_of = itemgetter(*(every.index(c) for c in self.primary_key))
        newest: dict[Any, Row] = {}
        for row in rows:
            key = key_of(row)
            held = newest.get(key)
            if held is None or _ORDER_OF(row) > _ORDER_OF(held):
                newest[key] = row
        return newest.values()


def system_layouts() -> list[Layout]:
    """The layouts of the tables that every flow has."""
    return [Layout(sink, table, derive(Letter)) for sink, table in SYSTEM_TABLES.items()]


def column_type(one: Field) -> str:
    """The type of a column in SQLite, "" for none."""
    return _TYPES[one.type]


def may_be_null(one: Field) -> bool:
    """Whether a column in SQLite may hold NULL: of a float that is NaN."""
    return one.optional or one.type is FieldType.FLOAT64


def quoted(name: str) -> str:
    """`name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _rows(batch: ColumnBatch) -> Iterator[Row]:
    paths: Iterable[bytes] = repeat(b"", len(batch)) if batch.paths is None else batch.paths
    return zip(*batch.fields, batch.times, batch.names, batch.numbers, paths, strict=True)
