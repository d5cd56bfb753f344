"""Schemas: the typed fields of a record, derived from its Python type, for the wire, Arrow and SQL alike."""

from geartrain.schema.codec import RowCodec
from geartrain.schema.columns import ColumnBatch
from geartrain.schema.derive import derive, logicals
from geartrain.schema.fields import Field, FieldType, Schema
from geartrain.schema.logical import Digits, Logical
from geartrain.schema.notes import Description, Note, Unit

__all__ = [
    "ColumnBatch",
    "Description",
    "Digits",
    "Field",
    "FieldType",
    "Logical",
    "Note",
    "RowCodec",
    "Schema",
    "Unit",
    "derive",
    "logicals",
]
