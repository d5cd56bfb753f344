"""What a store will refuse of a sink, asked when a flow is submitted and not when its first rows come.

Beside the stores, which ask the same of each table that they make. Pure: no store is opened. Guarantees: the
sentence names the table, the field, and what the user can change.
"""

from __future__ import annotations

from collections.abc import Iterable

from geartrain.declarations.sink import Table
from geartrain.sinks import DeltaTable, ParquetTable, PostgresTable
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, Layout, TableError

POSTGRES_NAME_BYTES_MAX = 63
"""A longer name is cut by PostgreSQL, without a word."""
POSTGRES_COLUMNS_MAX = 1_600
"""Of one table, dropped columns included; the hidden ones of Geartrain count."""
POSTGRES_OWN = frozenset({"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"})
"""Columns that PostgreSQL gives every table itself; a statement cannot name others so."""
FILE_NAME_BYTES_MAX = 255
_ENDING_BYTES = len(".parquet")
_HIDDEN = len(ORDER_COLUMNS) + 1


def check_postgres(layout: Layout) -> None:
    """Raise `TableError` for a table that PostgreSQL cannot hold."""
    layout.check()
    table = layout.table.name
    is_own = isinstance(layout.table, PostgresTable)
    instead = "" if is_own else ", or leave [tables] store of the platform empty"
    for name, what in ((table, "the sink"), *((column, "the field") for column in layout.columns)):
        if len(name.encode()) > POSTGRES_NAME_BYTES_MAX:
            raise TableError(
                f"sink {layout.sink!r}: the name {name!r} is longer than the {POSTGRES_NAME_BYTES_MAX} bytes "
                f"that PostgreSQL keeps: give {what} a shorter name{instead}"
            )
    for column in layout.columns:
        if column in POSTGRES_OWN:
            raise TableError(
                f"sink {layout.sink!r}: table {table!r} has a field {column!r}, a name that PostgreSQL "
                f"keeps for a column of its own: rename the field of {layout.schema.name}{instead}"
            )
    if len(layout.columns) > POSTGRES_COLUMNS_MAX - _HIDDEN:
        raise TableError(
            f"sink {layout.sink!r}: table {table!r} has {len(layout.columns):,} fields, and PostgreSQL holds "
            f"{POSTGRES_COLUMNS_MAX - _HIDDEN:,} of a record: make several tables, or put fields into a "
            f"nested record{instead}"
        )


def check_tables(layouts: Iterable[Layout], *, in_postgres: bool) -> None:
    """Raise `TableError` for the first table that its store will not hold.

    in_postgres: whether tables of flows go to PostgreSQL, as `[tables] store` of the platform says.
    """
    for layout in layouts:
        sink = layout.table
        if isinstance(sink, PostgresTable) or (type(sink) is Table and in_postgres):
            check_postgres(layout)
        elif type(sink) is Table:
            layout.check()
        is_folder = isinstance(sink, DeltaTable | ParquetTable)
        if is_folder and len(sink.name.encode()) > FILE_NAME_BYTES_MAX - _ENDING_BYTES:
            raise TableError(
                f"sink {layout.sink!r}: the name {sink.name!r} is longer than a folder's name may be: give "
                "the sink a shorter name"
            )
