"""What a step's code says it makes, against the type that the step is to put out.

Asked when a flow is built, by every face of it. Guarantees: a step whose annotations show that each of its
results would be a dead letter is a `FlowError` of one sentence. Code without annotations is not judged.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from geartrain.errors import FlowError
from geartrain.graph.operator import Operator
from geartrain.schema import derive
from geartrain.schema.derive import field_names, is_record_type
from geartrain.schema.fitting import (
    can_be_key,
    can_be_state,
    can_come_out,
    can_fit,
    returned_type,
    type_name,
)

_MAKES_OUT = ("map", "reduce", "window_reduce", "interval_join", "window_join", "broadcast")
"""Kinds of operators whose `function` makes what the step puts out."""
_SEVERAL = (list, set, frozenset, Iterable, Iterator, Collection, Sequence)
"""Types whose one argument is the type of what they hold."""


def check_types(where: str, operator: Any, kind: Any) -> None:
    """Raise `FlowError` where the operator's code makes what is no `kind`; kind None: nothing comes out."""
    if operator.kind == "key_by":
        _check_key(where, operator, kind)
    elif kind is None:
        return
    elif operator.kind in _MAKES_OUT:
        _check_returned(where, operator.function, kind)
    elif operator.kind == "flat_map":
        returned = returned_type(operator.function)
        if typing.get_origin(returned) in _SEVERAL:
            _check_made(where, f"{_name(operator.function)} makes", typing.get_args(returned)[0], kind)
    elif operator.kind == "iterate":
        _check_returned(where, operator.body, kind)
    elif operator.kind in ("fold", "window_fold"):
        _check_state(where, operator)
        if operator.result is not None:
            _check_returned(where, operator.result, kind)
        else:
            _check_made(where, "the state is", operator.state, kind)
    elif operator.kind in ("process", "stateless"):
        _check_task(where, operator.task, kind)


def check_fields(out: Any, makers: Mapping[str, tuple[str, Any]]) -> None:
    """Raise `FlowError` where a field of the record type `out` is filled with what it cannot hold.

    makers: by field, what fills it, as sentences say that, and the type of what it makes.
    """
    hints = typing.get_type_hints(out, include_extras=True)
    for name, (maker, made) in makers.items():
        if not can_fit(made, hints[name]):
            wanted = next(field.type_name for field in derive(out).fields if field.name == name)
            raise FlowError(
                f"{maker} {type_name(made)}, which field {name!r} of {out.__name__} cannot "
                f"hold, since it is {wanted}: declare {name}: {type_name(made)}"
            )


def key_type(operator: Operator | None, kind: Any) -> Any:
    """The type of the keys that a `key_by` gives to records of the type `kind`; None: it is not known."""
    field = getattr(operator, "field", None)
    if isinstance(field, str):
        hints = typing.get_type_hints(kind, include_extras=True) if is_record_type(kind) else {}
        return hints.get(field) if field in (field_names(kind) if hints else ()) else None
    return returned_type(getattr(operator, "function", None))


def _check_key(where: str, operator: Any, kind: Any) -> None:
    found = key_type(operator, kind)
    if found is None or can_be_key(found):
        return
    what = f"field {operator.field!r}" if operator.field else _name(operator.function)
    raise FlowError(
        f"{where}: {what} is {type_name(found)}, which cannot be a key: a key is a str, int, bool, bytes or "
        "a tuple of them, so give key_by a function that makes one of it"
    )


def _check_returned(where: str, function: Callable[..., Any], kind: Any) -> None:
    _check_made(where, f"{_name(function)} returns", returned_type(function), kind)


def _check_task(where: str, task: Any, kind: Any) -> None:
    from geartrain.declarations.task import task_types

    taken, made = task_types(task)
    if taken != made:  # a task that emits what comes in may be given records of any type
        _check_made(where, f"{type(task).__name__} emits", made, kind)


def _check_state(where: str, operator: Any) -> None:
    made = returned_type(operator.function)
    if made is not None and made is not type(None) and not can_be_state(made, operator.state):
        raise FlowError(
            f"{where}: {_name(operator.function)} returns {type_name(made)}, and the state is "
            f"{type_name(operator.state)}: make these one type"
        )


def _check_made(where: str, what: str, made: Any, kind: Any) -> None:
    if made is not None and made is not type(None) and not can_come_out(made, kind):
        raise FlowError(
            f"{where}: {what} {type_name(made)}, and {type_name(kind)} is to come out: make these one type"
        )


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
