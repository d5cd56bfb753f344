"""What an aggregate takes of each record: a field, what a user's function returns, or the record itself.

Stands before the adding. Guarantees: a user's function is called once for each record; a value that cannot be
added is found here, before any aggregate of the step has seen the record.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from geartrain.aggregates.mergeable import Accept, Selector
from geartrain.aggregates.values import normal_form
from geartrain.errors import USER_ERRORS, FlowError, GeartrainError
from geartrain.graph.conform import describe
from geartrain.schema import RowCodec, derive
from geartrain.schema.derive import is_optional, value_type


class Column:
    """One selected value of each record of the type `record`.

    kind: its Python type, None where a function does not say; optional: whether the value may be None.
    """

    def __init__(self, selector: Selector, record: Any) -> None:
        """Raises `FlowError` for a field that is not there, or a function whose type cannot be a field."""
        self._function: Callable[[Any], Any] | None = selector.function
        self._getter = None if selector.field is None else attrgetter(selector.field)
        self._codec: RowCodec | None = None
        self._accept: Accept | None = None
        if selector.function is not None:
            hint = _returned(selector.function)
            self.optional = is_optional(hint or Any)
            self.kind = None if hint in (None, Any) else value_type(hint)
            self._codec = None if self.kind is None else _codec(self.kind)
        elif selector.field is not None:
            hint = _field_type(record, selector.field)
            self.optional, self.kind = is_optional(hint), value_type(hint)
        else:
            self.optional, self.kind = False, record

    def accept_by(self, accept: Accept | None) -> None:
        """Pass each value that is not None through `accept`."""
        self._accept = accept

    def accept_plain(self) -> None:
        """Refuse what cannot be kept: any value of an unknown type that is no plain one."""
        self._accept = normal_form if self.kind is None else None

    def read(self, values: Sequence[Any], refused: dict[int, str]) -> list[Any]:
        """The value of each record; where there is none that can be added, None, and `refused` has the
        reason.
        """
        if self._function is not None:
            found = self._called(values, refused)
        else:
            found = list(values) if self._getter is None else list(map(self._getter, values))
        accept = self._accept
        if accept is not None:
            for row, value in enumerate(found):
                if value is not None:
                    try:
                        found[row] = accept(value)
                    except (GeartrainError, ValueError) as error:
                        found[row] = None
                        refused.setdefault(row, str(error))
        return found

    def _called(self, values: Sequence[Any], refused: dict[int, str]) -> list[Any]:
        function, found = self._function, []
        for row, value in enumerate(values):
            try:
                found.append(function(value))  # type: ignore[misc]
            except USER_ERRORS as error:
                found.append(None)
                refused.setdefault(row, describe(error))
        if self._codec is None:
            return found
        rows = [row for row, value in enumerate(found) if value is not None]
        conformed, wrong = self._codec.conform([found[row] for row in rows])
        for row, value in zip(rows, conformed, strict=True):
            found[row] = value
        for index, reason in wrong:
            found[rows[index]] = None
            refused.setdefault(rows[index], reason)
        return found


def _returned(function: Callable[[Any], Any]) -> Any:
    """The type that a function says it returns, None where it says none."""
    try:
        return typing.get_type_hints(function, include_extras=True).get("return")
    except (NameError, TypeError):
        return None


def _codec(kind: Any) -> RowCodec:
    try:
        return RowCodec(kind)
    except GeartrainError as error:
        raise FlowError(f"a function of an aggregate returns what cannot be a field: {error}") from None


@lru_cache(maxsize=1024)  # a fragment is opened for each micro-batch
def _field_type(record: Any, field: str) -> Any:
    names = [] if derive(record).scalar else [f.name for f in derive(record).fields]
    if field not in names:
        name = getattr(record, "__name__", record)
        raise FlowError(f"{name} has no field {field!r}; its fields: {', '.join(names) or 'none'}")
    return typing.get_type_hints(record, include_extras=True)[field]
