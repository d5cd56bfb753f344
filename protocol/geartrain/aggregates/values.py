"""Values of a type that nobody declared: which can be kept, and in which form they are told apart."""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from geartrain.aggregates.exact import number
from geartrain.errors import SchemaError
from geartrain.records.event_time import from_datetime, to_datetime

_DOUBLE = struct.Struct(">d").pack
_NAN = b"f" + _DOUBLE(float("nan"))


def normal_form(value: Any) -> Any:
    """A plain value as it comes back from a saved state; raises `SchemaError` for what is no plain value."""
    kind = type(value)
    if kind is datetime:
        return to_datetime(from_datetime(value))
    if kind in (bool, int, float):
        return number(value)
    if kind is str or kind is bytes:
        return value
    raise SchemaError(
        f"{kind.__name__} is kept only where its type is known: annotate what the function returns"
    )


def identity(value: Any) -> bytes:
    """Bytes that are equal iff type and value are; -0.0 is 0.0, and all NaN are one.

    Raises `SchemaError` for a type whose values cannot be told apart so.
    """
    kind = type(value)
    if kind is str:
        return b"s" + value.encode()  # type: ignore[no-any-return]
    if kind is float:
        return b"f" + _DOUBLE(value + 0.0) if value == value else _NAN
    if kind is int:
        return b"i%d" % value
    if kind is bool:
        return b"b\x01" if value else b"b\x00"
    if kind is bytes:
        return b"y" + value  # type: ignore[no-any-return]
    if kind is datetime:
        return b"t%d" % from_datetime(value)
    if kind is Decimal:
        return b"d%d/%d" % number(value).as_integer_ratio()
    if isinstance(value, Enum):
        return b"e" + value.name.encode()
    raise SchemaError(f"{kind.__name__} values cannot be told apart")
