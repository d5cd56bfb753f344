"""Whether values of one type can ever fit a field, a key, a state or a stream of another.

Asked once, where a flow is built, so that a step whose every result would be a dead letter is refused before
any record. Guarantees: a type is refused only if every value of the type would be refused. A type that says
little, such as Any, a type variable or a protocol, fits.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from geartrain.schema.derive import is_optional, is_record_type, value_type
from geartrain.schema.notes import without_notes

_PLAIN: tuple[type, ...] = (bool, int, float, str, bytes, datetime, Decimal)
_CONTAINERS: tuple[type, ...] = (list, dict, tuple)
_BUILT_IN = (*_PLAIN, *_CONTAINERS, set, frozenset, date, time, timedelta)
"""Classes of which two have no common subclass, unless one is a subclass of the other."""
_KEYS: tuple[type, ...] = (str, int, bool, bytes, tuple)
_WRITTEN = {
    bool: {"bool"},
    int: {"int"},
    float: {"float"},
    str: {"str"},
    bytes: {"bytes"},
    datetime: {"str", "time"},
    Decimal: {"str"},
}
"""How a value is written in msgpack; a datetime without a zone is a text."""
_READ = {bool: {"bool"}, int: {"int"}, float: {"int", "float"}, str: {"str"}, bytes: {"bytes"}}
"""What of msgpack is read as a value."""


def can_fit(kind: Any, hint: Any) -> bool:
    """Whether a value of the type `kind` can fit a field that is declared as `hint`."""
    found = list(_alternatives(kind))
    if type(None) in found and is_optional(hint):
        return True
    wanted = value_type(hint)
    return any(_can_fit(given, wanted) for given in found if given is not type(None))


def can_come_out(kind: Any, out: Any) -> bool:
    """Whether a value of the type `kind` can be a record of a stream of the type `out`."""
    if not is_record_type(out):
        return can_fit(kind, out)
    return any(not _are_apart(_class_of(given), out) for given in _alternatives(kind))


def can_be_state(kind: Any, state: Any) -> bool:
    """Whether a value of the type `kind` can be a state of the type `state`, read from its msgpack."""
    return any(
        _can_be_read(_class_of(given), _class_of(wanted))
        for given in _alternatives(kind)
        for wanted in _alternatives(state)
    )


def can_be_key(kind: Any) -> bool:
    """Whether a value of the type `kind` can be a key."""
    return any(_can_be_key(given) for given in _alternatives(kind) if given is not type(None))


def returned_type(function: Any) -> Any:
    """The type that a function says it returns; None where none is said, or a decorator may change it."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        return function
    if hasattr(function, "__wrapped__"):
        return None
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - of a user's own annotations
        return None


def type_name(kind: Any) -> str:
    """A type as it may stand in a sentence."""
    plain = value_type(kind)
    is_class = isinstance(plain, type) and not typing.get_args(plain)
    return plain.__name__ if is_class else str(plain).replace("typing.", "").replace("decimal.", "")


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a value may have."""
    kind, _ = without_notes(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        for alternative in typing.get_args(kind):
            yield from _alternatives(alternative)
    else:
        yield kind


def _class_of(kind: Any) -> type | None:
    """The class of a type's values, None where the type does not say."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = kind.__origin__
    kind = typing.get_origin(kind) or kind
    return kind if isinstance(kind, type) and kind not in (Any, object, types.UnionType) else None


def _are_apart(given: type | None, wanted: type) -> bool:
    """Whether no value is of both classes, as far as the classes say."""
    if given is None or getattr(given, "_is_protocol", False) or given in wanted.__mro__:
        return False
    is_closed = is_record_type(given) or (issubclass(given, Enum) and len(given) > 0)
    return (is_closed or issubclass(given, _BUILT_IN)) and not issubclass(given, wanted)


def _can_fit(kind: Any, hint: Any) -> bool:
    given, wanted = _class_of(kind), _class_of(hint)
    if given is None or wanted is None:
        return True
    if wanted in (float, Decimal):  # an int is made one
        return not _are_apart(given, wanted) or (given is not bool and not _are_apart(given, int))
    if wanted is int:
        return given is not bool and not _are_apart(given, int)
    if wanted in _PLAIN or issubclass(wanted, Enum):
        return not _are_apart(given, wanted)
    # What is nested is read from its msgpack, in which a record is a map or an array.
    return given not in _PLAIN or not (issubclass(wanted, _CONTAINERS) or is_record_type(wanted))


def _can_be_read(given: type | None, wanted: type | None) -> bool:
    if given not in _WRITTEN or wanted is None:
        return True
    if wanted in _READ:
        return not _WRITTEN[given].isdisjoint(_READ[wanted])
    return not (issubclass(wanted, _CONTAINERS) or is_record_type(wanted))


def _can_be_key(kind: Any) -> bool:
    given = _class_of(kind)
    if given is not None and issubclass(given, tuple):
        parts = [part for part in typing.get_args(kind) if part is not Ellipsis]
        return all(can_be_key(part) for part in parts)
    return any(not _are_apart(given, wanted) for wanted in _KEYS)
