"""What stores hold of a table: names, numbers of columns, keys, and the room that a row may take.

Asked when a flow is planned or submitted, before any source is read; the stores ask the same again of each
table that they make. Pure: no store is opened. Guarantees: a refusal is one `ConfigError` that names the
table, the field, and what the user can change.
"""

from __future__ import annotations

from geartrain.errors import ConfigError
from geartrain.schema import Field, FieldType, Schema

_HIDDEN = (FieldType.INT64, FieldType.STR, FieldType.INT64, FieldType.BYTES)
"""What every table has beside its fields: event time, and name, number and path of the origin."""
RESERVED_NAMES = frozenset(("dead_letters", "late", "overtaken"))
"""The tables that every flow has by itself."""
SQLITE_COLUMNS_MAX = 2_000
"""Of one table; the hidden ones of Geartrain count."""
POSTGRES_NAME_BYTES_MAX = 63
"""A longer name is cut by PostgreSQL, without a word."""
POSTGRES_COLUMNS_MAX = 1_600
"""Of one table, dropped columns included; the hidden ones of Geartrain count."""
POSTGRES_KEY_MAX = 32
"""Fields that name a row."""
POSTGRES_OWN = frozenset({"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"})
"""Columns that PostgreSQL gives every table itself; a statement cannot name others so."""
POSTGRES_ROW_BYTES_MAX = 8_160
"""Of one row, which lies in one page: 8,192 bytes without the page's header and the row's place in it."""
FILE_NAME_BYTES_MAX = 255
_ENDING_BYTES = len(".parquet")
_ROW_HEADER_BYTES = 24
_OF_8_BYTES = frozenset((FieldType.INT64, FieldType.FLOAT64, FieldType.DATETIME))
"""What takes 8 bytes in a row of PostgreSQL, at a multiple of 8. Others take 1 or more: a text may be empty,
and lies elsewhere where it is long.
"""


def check_name(where: str, name: str) -> None:
    """Refuse the name of a table of Geartrain's own.

    Args:
        where: how the sentence begins, such as `sink 'out'`.
        name: what the table is to be called.

    Raises:
        ConfigError: the name belongs to Geartrain or to SQLite.
    """
    if name.lower() in RESERVED_NAMES:
        raise ConfigError(f"{where}: the table name {name!r} belongs to Geartrain; choose another")
    if name.lower().startswith("sqlite_"):
        raise ConfigError(f"{where}: SQLite reserves names that start with sqlite_; rename {name!r}")


def check_columns(name: str, key: tuple[str, ...], schema: Schema) -> None:
    """Refuse fields that no table of an SQL store can have.

    Args:
        name: what the table is called.
        key: the fields that name a row.
        schema: that of its records.

    Raises:
        ConfigError: two fields differ in upper and lower case alone, there are too many, or a field cannot be
            a key.
    """
    fields = {field.name: field for field in schema.fields}
    most = SQLITE_COLUMNS_MAX - len(_HIDDEN)
    if len(fields) > most:
        raise ConfigError(
            f"table {name!r} has {len(fields):,} fields, and SQLite holds {most:,} of a record: make several "
            "tables, or put fields into a nested record"
        )
    check_case(name, schema)
    if doubled := next((column for column in key if key.count(column) > 1), None):
        raise ConfigError(f"table {name!r}: its key names {doubled!r} more than once: leave one out")
    for column in key:
        if column not in fields:
            raise ConfigError(f"table {name!r}: its key {column!r} is not a field of {schema.name}")
        if fields[column].optional or fields[column].type is FieldType.FLOAT64:
            raise ConfigError(
                f"table {name!r}: its key {column!r} may be None or a float, which cannot name a row; key it "
                "by other fields"
            )


def check_case(name: str, schema: Schema) -> None:
    """Refuse fields whose names a store takes for one.

    Args:
        name: what the table is called.
        schema: that of its records.

    Raises:
        ConfigError: two fields differ in upper and lower case alone.
    """
    if len({field.name.lower() for field in schema.fields}) < len(schema.fields):
        raise ConfigError(f"table {name!r}: two fields differ only in upper and lower case; rename one")


def check_postgres(where: str, name: str, key: tuple[str, ...], schema: Schema, instead: str = "") -> None:
    """Refuse a table that PostgreSQL cannot hold.

    Args:
        where: how the sentence begins, such as `sink 'out'`.
        name: what the table is called.
        key: the fields that name a row.
        schema: that of its records.
        instead: what else the user can do, as the end of the sentence.

    Raises:
        ConfigError: a name is too long or is a column of PostgreSQL's own, or a row takes too much room.
    """
    for text, what in ((name, "the sink"), *((field.name, "the field") for field in schema.fields)):
        if len(text.encode()) > POSTGRES_NAME_BYTES_MAX:
            raise ConfigError(
                f"{where}: the name {text!r} is longer than the {POSTGRES_NAME_BYTES_MAX} bytes that "
                f"PostgreSQL keeps: give {what} a shorter name{instead}"
            )
    for field in schema.fields:
        if field.name in POSTGRES_OWN:
            raise ConfigError(
                f"{where}: table {name!r} has a field {field.name!r}, a name that PostgreSQL keeps for a "
                f"column of its own: rename the field of {schema.name}{instead}"
            )
    most, smaller = (
        POSTGRES_COLUMNS_MAX - len(_HIDDEN) - 1,
        "make several tables, or put fields into a nested",
    )
    if len(schema.fields) > most:
        raise ConfigError(
            f"{where}: table {name!r} has {len(schema.fields):,} fields, and PostgreSQL holds {most:,} of a "
            f"record: {smaller} record{instead}"
        )
    if len(key) > POSTGRES_KEY_MAX:
        raise ConfigError(
            f"{where}: the key of table {name!r} has {len(key)} fields, and PostgreSQL takes "
            f"{POSTGRES_KEY_MAX}: key it by fewer{instead}"
        )
    if (least := _row_bytes(schema.fields)) > POSTGRES_ROW_BYTES_MAX:
        raise ConfigError(
            f"{where}: a row of table {name!r} takes at least {least:,} bytes, and PostgreSQL holds "
            f"{POSTGRES_ROW_BYTES_MAX:,} of a row: {smaller} record{instead}"
        )


def check_folder(where: str, name: str, key: tuple[str, ...], what: str) -> None:
    """Refuse a folder of files that a table cannot be.

    Args:
        where: how the sentence begins, such as `sink 'out'`.
        name: what the folder is called, without its ending.
        key: the fields that name a row.
        what: what the files are, such as `Parquet files are`.

    Raises:
        ConfigError: rows are to be replaced, or the name is too long.
    """
    if key:
        raise ConfigError(
            f"{where}: {what} only added to, so there is no key: leave it away, or use a Table or "
            "PostgresTable"
        )
    if len(name.encode()) > FILE_NAME_BYTES_MAX - _ENDING_BYTES:
        raise ConfigError(
            f"{where}: the name {name!r} is longer than a folder's name may be: give the sink a shorter name"
        )


def _row_bytes(fields: tuple[Field, ...]) -> int:
    """What a row takes at the least, the hidden columns included, and without all that may be left out."""
    kinds = [FieldType.STR if field.logical else field.type for field in fields if not field.optional]
    size = _ROW_HEADER_BYTES
    for kind in (*kinds, *_HIDDEN):
        size = -(-size // 8) * 8 + 8 if kind in _OF_8_BYTES else size + 1
    return size
