"""Schemas: the typed fields of a record, derived from its Python type, for the wire, Arrow and SQL alike."""

from geartrain.schema.codec import RowCodec
from geartrain.schema.columns import ColumnBatch
from geartrain.schema.derive import derive, logicals
from geartrain.schema.fields import Field, FieldType, Schema
from geartrain.schema.logical import Digits, Logical

__all__ = [
    "ColumnBatch",
    "Digits",
    "Field",
    "FieldType",
    "Logical",
    "RowCodec",
    "Schema",
    "derive",
    "logicals",
]
