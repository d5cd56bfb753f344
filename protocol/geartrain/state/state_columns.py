"""Whether many states have their declared form, found out by columns instead of state by state.

Stands beside `state_type`, which brings a single state into its form or refuses it. What is looked at here is
a copy of a state's fields, taken after each call of a task. That is only worth something where no field can
be changed in place. So other states are looked at one by one. Guarantees: a state that passes is one that
`StateType.fitted` would give back as it is.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from geartrain.schema.storable import are_int64, are_unicode

Ready = Callable[[Sequence[Any]], bool]
_FOLD = attrgetter("fold")


class StateColumns:
    """The states of one type: `fields` gives the fields of a state, `ready` whether many of these fit."""

    def __init__(self, kind: type[msgspec.Struct], checks: Sequence[Ready]) -> None:
        self.kind, self._checks = kind, checks
        self.fields: Callable[[Any], tuple[Any, ...]] = msgspec.structs.astuple

    @staticmethod
    @lru_cache(maxsize=256)  # a fragment is opened for each micro-batch
    def of(kind: Any) -> StateColumns | None:
        """None for a type whose fields can be changed in place, or whose form takes a closer look."""
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return None
        checks = _field_checks(kind)
        return StateColumns(kind, checks) if checks else None

    def ready(self, put: Sequence[Any], fields: Sequence[tuple[Any, ...]]) -> bool:
        """Whether states with such fields have their declared form, of which `put` are new objects."""
        return set(map(type, put)) <= {self.kind} and _all_ready(self._checks, fields)


def _field_checks(kind: type[msgspec.Struct]) -> list[Ready] | None:
    """A check for each field of a struct, None where one cannot be checked so."""
    hints = typing.get_type_hints(kind)
    checks = [_check(hints[name]) for name in kind.__struct_fields__]
    return None if None in checks else typing.cast(list[Ready], checks)


def _all_ready(checks: Sequence[Ready], rows: Sequence[tuple[Any, ...]]) -> bool:
    return all(check(column) for check, column in zip(checks, zip(*rows, strict=True), strict=False))


def _check(hint: Any) -> Ready | None:
    """Whether all values of a field of the type `hint` have their form."""
    found: dict[type, Ready] = {}
    for part in typing.get_args(hint) if _is_union(hint) else (hint,):
        check = _PLAIN.get(part) or _frozen(part)
        if check is None:
            return None
        found[part] = check
    if len(found) == 1:
        [(only, check)] = found.items()
        return lambda column: list(map(type, column)).count(only) == len(column) and check(column)

    def ready(column: Sequence[Any]) -> bool:
        kinds = list(map(type, column))
        met = set(kinds)
        return found.keys() >= met and all(
            found[kind]([value for value, its in zip(column, kinds, strict=True) if its is kind])
            for kind in met
            if found[kind] is not _always
        )

    return ready


def _frozen(kind: Any) -> Ready | None:
    """The check of a part of a state that cannot be changed in place: each is looked at once."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen):
        return None
    checks = _field_checks(kind)
    if not checks:
        return None
    return lambda column: _all_ready(
        checks, list(map(msgspec.structs.astuple, {id(value): value for value in column}.values()))
    )


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _always(column: Sequence[Any]) -> bool:
    return True


def _are_moments(column: Sequence[datetime]) -> bool:
    return not [moment for moment in column if moment.tzinfo is not UTC] and not any(map(_FOLD, column))


_PLAIN: dict[Any, Ready] = {
    bool: _always,
    int: are_int64,
    float: _always,
    str: are_unicode,
    bytes: _always,
    datetime: _are_moments,
    type(None): _always,
}
