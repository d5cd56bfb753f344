"""Derive a schema from a Python type: `Record`, dataclass, NamedTuple or scalar.

Runs once, when a flow is built, so that a type that cannot travel is refused before any record does.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from geartrain.errors import SchemaError
from geartrain.schema.fields import Field, FieldType, Schema
from geartrain.schema.logical import DecimalField, Digits, EnumField, Logical, NestedField
from geartrain.schema.notes import Note, without_notes

_SCALARS: dict[Any, FieldType] = {
    bool: FieldType.BOOL,
    int: FieldType.INT64,
    float: FieldType.FLOAT64,
    str: FieldType.STR,
    bytes: FieldType.BYTES,
    datetime: FieldType.DATETIME,
}
_NAMES = ", ".join(t.__name__ for t in _SCALARS)
_NESTED = (list, dict, tuple)


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
        logical = _logical(kind, f"{_name(kind)} cannot be a record")
        return Schema(_name(kind), (Field("value", logical.plain, False, logical.text),), scalar=True)
    names = field_names(kind)
    hints = _hints(kind)
    for name in names:
        if name.startswith("_"):
            raise SchemaError(
                f"record {kind.__name__}, field {name}: a name that starts with _ is reserved, so rename it"
            )
    return Schema(kind.__name__, tuple(_field(kind.__name__, name, hints[name]) for name in names))


@lru_cache(maxsize=1024)
def logicals(kind: Any) -> tuple[Logical | None, ...]:
    """How the values of each field of a type that `derive` takes become its column; None for plain ones."""
    if not is_record_type(kind):
        return (None if kind in _SCALARS else _logical(kind, ""),)
    hints = _hints(kind)
    found = (value_type(hints[name]) for name in field_names(kind))
    return tuple(None if hint in _SCALARS else _logical(hint, "") for hint in found)


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise SchemaError(
            f"record {kind.__name__}: {error}; declare its field types at module level"
        ) from None


def _field(record: str, name: str, hint: Any) -> Field:
    hint, outside = without_notes(hint)
    hint, optional = _without_none(hint)
    hint, inside = without_notes(hint)
    note = Note(inside.unit or outside.unit, inside.description or outside.description)
    if hint in _SCALARS:
        return Field(name, _SCALARS[hint], optional, "", note)
    logical = _logical(hint, f"record {record}, field {name}: {_name(hint)} is not a field type")
    return Field(name, logical.plain, optional, logical.text, note)


def value_type(hint: Any) -> Any:
    """The type of a field's values other than None, without the notes of the field."""
    return without_notes(_without_none(without_notes(hint)[0])[0])[0]


def is_optional(hint: Any) -> bool:
    """Whether a field declared as `hint` may be None."""
    return _without_none(without_notes(hint)[0])[1]


def _without_none(hint: Any) -> tuple[Any, bool]:
    """(the type without `| None`, whether it had that); Any has it."""
    if hint is Any:
        return hint, True
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(others) < len(typing.get_args(hint)):
            return typing.Union[tuple(others)], True  # noqa: UP007
    return hint, False


def _logical(hint: Any, what: str) -> Logical:
    """The logical type of a hint that is no plain one; raises `SchemaError`, which begins with `what`."""
    if typing.get_origin(hint) is typing.Annotated:
        digits = [extra for extra in hint.__metadata__ if isinstance(extra, Digits)]
        if hint.__origin__ is Decimal and digits:
            return DecimalField(digits[0])
    if hint is Decimal:
        raise SchemaError(f"{what}: say how many digits it has, as in Annotated[Decimal, Digits(12, 2)]")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return EnumField(hint)
    if hint in (Any, *_NESTED) or typing.get_origin(hint) in _NESTED or is_record_type(hint):
        try:
            return NestedField(hint)
        except SchemaError as error:
            raise SchemaError(f"{what} ({error})") from None
    raise SchemaError(
        f"{what}: use one of {_NAMES}, Annotated[Decimal, Digits(...)], an Enum, a list, a dict, a tuple, a "
        "record or Any (one untyped column), or one of them | None"
    )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
