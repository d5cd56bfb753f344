"""Derive a schema from a Python type: `Record`, dataclass, NamedTuple or scalar.

Runs once, when a flow is built, so that a type that cannot travel is refused before any record does.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from geartrain.errors import SchemaError
from geartrain.schema.fields import Field, FieldType, Schema

_SCALARS: dict[Any, FieldType] = {
    bool: FieldType.BOOL,
    int: FieldType.INT64,
    float: FieldType.FLOAT64,
    str: FieldType.STR,
    bytes: FieldType.BYTES,
    datetime: FieldType.DATETIME,
}
_NAMES = ", ".join(t.__name__ for t in _SCALARS)


def is_record_type(kind: Any) -> bool:
    """Whether `kind` is a class with named fields: a msgspec Struct, a dataclass or a NamedTuple."""
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct)
        or dataclasses.is_dataclass(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """The field names of a record type, in the order of its constructor."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(f.name for f in dataclasses.fields(kind))
    return tuple(kind._fields)


@lru_cache(maxsize=1024)
def derive(kind: Any) -> Schema:
    """The schema of a record or scalar type; raises `SchemaError` naming the type, the field and the fix."""
    if kind in _SCALARS:
        return Schema(kind.__name__, (Field("value", _SCALARS[kind]),), scalar=True)
    if not is_record_type(kind):
        raise SchemaError(
            f"{_name(kind)} cannot be a record: use a geartrain.Record, a dataclass, a NamedTuple or "
            f"one of {_NAMES}"
        )
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise SchemaError(
            f"record {kind.__name__}: {error}; declare its field types at module level"
        ) from None
    names = field_names(kind)
    for name in names:
        if name.startswith("_"):
            raise SchemaError(
                f"record {kind.__name__}, field {name}: a name that starts with _ is reserved, so rename it"
            )
    return Schema(kind.__name__, tuple(_field(kind.__name__, name, hints[name]) for name in names))


def _field(record: str, name: str, hint: Any) -> Field:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [a for a in typing.get_args(hint) if a is not type(None)]
        optional = len(others) < len(typing.get_args(hint))
        hint = others[0] if len(others) == 1 else hint
    if hint not in _SCALARS:
        raise SchemaError(
            f"record {record}, field {name}: {_name(hint)} is not a field type; use one of {_NAMES}, "
            "or one of them | None"
        )
    return Field(name, _SCALARS[hint], optional)


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
