"""Schemas: the typed fields of a record, derived from its Python type, for the wire, Arrow and SQL alike."""

from geartrain.schema.codec import RowCodec
from geartrain.schema.columns import ColumnBatch
from geartrain.schema.derive import derive
from geartrain.schema.fields import Field, FieldType, Schema

__all__ = ["ColumnBatch", "Field", "FieldType", "RowCodec", "Schema", "derive"]
