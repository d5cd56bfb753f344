"""Values of columns as values of JSON: the one form in which records are shown to people and sent to others.

Beside columns, where they leave the flow: tables that are read, messages, and lines of files. Guarantees: the
same value has the same form in every sink, on a device as in the cloud, and JSON can hold each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from geartrain.records.event_time import format_time, from_datetime
from geartrain.schema.columns import ColumnBatch
from geartrain.schema.fields import Field, FieldType, Schema


def plain_rows(schema: Schema, rows: ColumnBatch) -> Iterator[dict[str, Any]]:
    """Each row as values of JSON, field by field in schema order."""
    readers: list[Callable[[Any], Any]] = [value_reader(field) for field in schema.fields]
    names = [field.name for field in schema.fields]
    for values in zip(*rows.fields, strict=True):
        yield {
            name: None if value is None else read(value)
            for name, read, value in zip(names, readers, values, strict=True)
        }


def value_reader(field: Field) -> Callable[[Any], Any]:
    """How a value of a column, not None, becomes one of JSON.

    A time is `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`, bytes are hexadecimal, a Decimal is its digits as text, and an
    enum its member's name. A float that JSON cannot hold (NaN, infinite) is None.
    """
    if field.logical.startswith("decimal("):
        scale = int(field.logical[len("decimal(") : -1].split(",")[1])
        return lambda unscaled: format(Decimal(unscaled).scaleb(-scale), "f")
    if field.logical.startswith("nested("):
        return lambda packed: _plain(msgspec.msgpack.decode(packed))
    return _READERS.get(field.type, lambda value: value)


def _plain(value: Any) -> Any:
    """A nested value without what JSON cannot hold."""
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return format_time(from_datetime(value))
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_READERS: dict[FieldType, Callable[[Any], Any]] = {
    FieldType.BOOL: bool,
    FieldType.FLOAT64: _finite,
    FieldType.BYTES: bytes.hex,
    FieldType.DATETIME: format_time,
}
