"""What a row gets in a column that is newer than it: the default that the record type gives the field.

Read where a flow's sinks are collected, before a table gets further columns.

Guarantees: a default fits its field, and is the same whenever it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec

from geartrain.schema import RowCodec

_EMPTY = (list, dict, set, tuple)


def column_defaults(kind: Any) -> dict[str, Any]:
    """By field, the default as a column holds it; without fields that have none, or None.

    A default that is made anew for each record counts where it is an empty list, dictionary, set or tuple.
    Others, such as the present time, say nothing of old rows.

    Args:
        kind: a type that a stream's records have.
    """
    found: dict[str, Any] = {}
    for name, value in _declared(kind):
        hint = get_type_hints(kind, include_extras=True)[name]
        alone = msgspec.defstruct("Default", [(name, hint)])
        codec = RowCodec(alone)
        values, wrong = codec.conform([alone(value)])
        if not wrong and value is not None:
            found[name] = codec.to_columns(values)[0][0]
    return found


def _declared(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a record type that have a default, and that."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for one in msgspec.structs.fields(kind):
            yield from _constant(one.name, one.default, one.default_factory, msgspec.NODEFAULT)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            yield from _constant(each.name, each.default, each.default_factory, dataclasses.MISSING)
    else:
        defaults: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
        yield from defaults.items()


def _constant(name: str, default: Any, factory: Any, nothing: Any) -> Iterator[tuple[str, Any]]:
    if default is not nothing:
        yield name, default
    elif factory in _EMPTY:
        yield name, factory()
