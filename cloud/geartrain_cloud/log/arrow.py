"""Rows as Arrow: the columns of the log, from a channel's schema and back.

Between decoded batches and segments, and between segments and Spark. Guarantees: a `ColumnBatch` comes back
from its table unchanged, bit for bit. That includes NaN payloads, the sign of zero, and null apart from NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from geartrain.errors import SchemaError
from geartrain.schema import ColumnBatch, FieldType, Schema
from geartrain_cloud.log.part import SYSTEM_NAMES

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""DATETIME fields in Arrow: int64 microseconds since 1970 UTC underneath."""

_TYPES: dict[FieldType, pa.DataType] = {
    FieldType.BOOL: pa.bool_(),
    FieldType.INT64: pa.int64(),
    FieldType.FLOAT64: pa.float64(),
    FieldType.STR: pa.string(),
    FieldType.BYTES: pa.binary(),
    FieldType.DATETIME: TIMESTAMP,
}

_SYSTEM_TYPES = (
    pa.int64(),
    pa.string(),
    pa.int64(),
    pa.binary(),
    pa.string(),
    pa.int64(),
    pa.bool_(),
    pa.bool_(),
)

SYSTEM_FIELDS: tuple[pa.Field[Any], ...] = tuple(
    pa.field(name, kind, nullable=False) for name, kind in zip(SYSTEM_NAMES, _SYSTEM_TYPES, strict=True)
)
"""Columns that follow the record's own in every row of the log; _event_time: microseconds since 1970 UTC."""


def arrow_type(kind: FieldType) -> pa.DataType:
    """The Arrow type of a column."""
    return _TYPES[kind]


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of the log for a channel of `schema`: its fields in order, then `SYSTEM_FIELDS`."""
    own = [pa.field(field.name, _TYPES[field.type], nullable=field.optional) for field in schema.fields]
    return pa.schema([*own, *SYSTEM_FIELDS])


def to_table(
    schema: Schema,
    rows: ColumnBatch,
    devices: Sequence[str],
    seqs: Sequence[int],
    late: Sequence[bool],
    overtaken: Sequence[bool],
) -> pa.Table:
    """Rows as a table of `arrow_schema(schema)`; the last four are columns of the rows' length.

    Raises `SchemaError` when a value does not fit its field.
    """
    layout = arrow_schema(schema)
    paths = rows.paths if rows.paths is not None else [b""] * len(rows)
    columns = [*rows.fields, rows.times, rows.names, rows.numbers, paths, devices, seqs, late, overtaken]
    try:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, layout, strict=True)]
        return pa.Table.from_arrays(arrays, schema=layout)
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise SchemaError(f"rows do not fit the schema {schema.name}: {error}") from None


def from_table(schema: Schema, table: pa.Table) -> ColumnBatch:
    """The rows of a table that has the columns of `arrow_schema(schema)`, whatever else it has."""
    fields = [_values(table.column(f.name), f.type is FieldType.DATETIME) for f in schema.fields]
    times, names, numbers, paths = (_values(table.column(f.name)) for f in SYSTEM_FIELDS[:4])
    return ColumnBatch(fields, times, names, numbers, paths if any(paths) else None)


def _values(column: pa.ChunkedArray[Any], is_time: bool = False) -> list[Any]:
    # A timestamp's own to_pylist builds a datetime a value; its integers are what a ColumnBatch holds.
    return (column.cast(pa.int64()) if is_time else column).to_pylist()
