"""The type of a keyed step's state: how it is made, saved, loaded, and kept in its declared form between
two calls.

Guarantees that a state in memory and the same state after a restart cannot be told apart. What would change
by being saved (an int in a float field) is changed at once, and what cannot be saved is refused.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Set
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from geartrain.errors import USER_ERRORS, SchemaError
from geartrain.records.keys import decode_key
from geartrain.schema.codec import short_form
from geartrain.schema.logical import type_text

Settle = Callable[[Any], Any]
Ready = Callable[[Any], bool]
_ENCODE = msgspec.msgpack.Encoder().encode
REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, AttributeError, msgspec.MsgspecError)
"""What is raised for a state that cannot be saved."""
_KINDS_MAX = 1_024
"""Types of which is known how their states are handled: a fragment is opened for each micro-batch."""


class StateType:
    """How states of the Python type `kind` are handled; `kind()` makes a fresh one."""

    def __init__(self, step: str, kind: Any, *, own: bool = False) -> None:
        """own: values always have their declared form and need no check.

        Raises `SchemaError` when states of this type cannot be made or saved.
        """
        self._step, self._kind, self._own = step, kind, own
        self.check(f"step {step!r}", kind)
        self._decoder = _decoder(kind)
        self.settle = None if own else _settler(kind)
        self.fit: Settle = _as_it_is if own else _fitter(kind)
        """A state in its declared form; raises one of `REFUSALS` for one that cannot be saved. Asked after
        each call, since the next one may hide what is wrong.
        """

    @staticmethod
    def check(where: str, kind: Any) -> None:
        """Raise `SchemaError`, which begins with `where`, when states of the type `kind` cannot be made or
        saved.
        """
        if isinstance(kind, msgspec.Struct) or (
            dataclasses.is_dataclass(kind) and not isinstance(kind, type)
        ):
            name = type(kind).__name__
            raise SchemaError(f"{where}: its state is one {name}, and not the type: write state = {name}")
        try:
            _decoder(kind)
            _settler(kind)
            _fitter(kind)
        except USER_ERRORS as error:  # a user's own class is made here
            what = (
                _short(kind) if isinstance(kind, type) or not callable(kind) else f"what {_short(kind)} makes"
            )
            raise SchemaError(
                f"{where}: {what} cannot be a state ({_said(error)}): "
                "use a geartrain.State with typed fields that have defaults, or a scalar type"
            ) from None

    def make(self) -> Any:
        """A fresh state."""
        return self._kind()

    def fitted(self, value: Any) -> Any:
        """A state in its declared form; raises `SchemaError` for one that cannot be saved."""
        try:
            return self.fit(value)
        except REFUSALS as error:
            raise self.refusal(value, error) from None

    def save(self, value: Any, key: bytes | None = None) -> bytes:
        """The msgpack of a state; raises `SchemaError` when it does not have its declared type.

        key: whose state it is, encoded, for that error.
        """
        try:
            raw = _ENCODE(value)
            if not self._own:
                self._decoder.decode(raw)
        except REFUSALS as error:
            raise self.refusal(value, error, key) from None
        return raw

    def refusal(self, value: Any, error: Exception, key: bytes | None = None) -> SchemaError:
        """Says that a state cannot be saved: of which step and key, and which field of it is to blame."""
        kind, whose = self._kind, "" if key is None else f" for the key {_key_text(key)}"
        for name in getattr(kind, "UNTRUSTED", ()):  # what a user knows of an operator's own state
            kind, value = _hints(kind)[name], getattr(value, name)
        blame = _blame(value, kind, "") or _said(error)
        return SchemaError(f"the state of step {self._step!r}{whose} cannot be saved: {blame}")

    def load(self, raw: bytes) -> Any:
        """The state that `save` wrote; raises `SchemaError` when `raw` is of another type."""
        try:
            return self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise SchemaError(f"the saved state of step {self._step!r} cannot be read: {error}") from None


@lru_cache(maxsize=_KINDS_MAX)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """What loads states of a type that has been tried: a fresh one was saved and loaded."""
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
    decoder.decode(_ENCODE(kind()))
    return decoder


@lru_cache(maxsize=_KINDS_MAX)
def _settler(kind: Any) -> Settle | None:
    """A function that gives a state its declared form, None where no value of the type needs it.

    Only floats do: an int may stand in their place until it is saved. Fields of structs are settled one by
    one, however deep; a float inside another container takes the way through msgpack.
    """
    if kind is float:
        return lambda value: float(value) if type(value) is int else value
    if not _holds_float(kind):
        return None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_settler(kind)
    others = [part for part in typing.get_args(kind) if part is not type(None)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and len(others) == 1:
        inner = _settler(others[0])
        return None if inner is None else (lambda value: value if value is None else inner(value))
    decode = msgspec.msgpack.Decoder(kind).decode
    return lambda value: decode(_ENCODE(value))


@lru_cache(maxsize=_KINDS_MAX)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@lru_cache(maxsize=_KINDS_MAX)
def _fitter(kind: Any) -> Settle:
    """A function that gives a state its declared form, or raises: at little cost where nothing is to do."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_fitter(kind)
    others = [part for part in typing.get_args(kind) if part is not type(None)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and len(others) == 1:
        inner = _fitter(others[0])
        return lambda value: value if value is None else inner(value)
    decode = msgspec.msgpack.Decoder(kind).decode
    ready = _READY.get(kind, _never)
    origin = typing.get_origin(kind) or kind
    takes_sets = isinstance(origin, type) and issubclass(origin, Set)

    def fit(value: Any) -> Any:
        if type(value) is kind and ready(value):
            return value
        if kind is float and type(value) is int:
            return float(value)
        if isinstance(value, Set) and not takes_sets:  # it would become a list, in an order of chance
            raise TypeError("a set has no order: sort it into a list, or declare a set")
        return decode(_ENCODE(value))

    return fit


def _struct_fitter(kind: type[msgspec.Struct]) -> Settle:
    hints = _hints(kind)
    fitters = [(n, _fitter(hints[n])) for n in getattr(kind, "UNTRUSTED", kind.__struct_fields__)]
    frozen = kind.__struct_config__.frozen
    is_ready = _struct_ready(kind)

    def fit(value: Any) -> Any:
        if is_ready(value):
            return value
        if type(value) is not kind:
            raise TypeError(f"expected a {kind.__name__}, got {type(value).__name__}")
        for name, inner in fitters:
            found = getattr(value, name)
            if (fitted := inner(found)) is not found:
                if frozen:
                    value = msgspec.structs.replace(value, **{name: fitted})
                else:
                    setattr(value, name, fitted)
        return value

    return fit


def _struct_ready(kind: type[msgspec.Struct]) -> Ready:
    """Whether a value of the very type `kind`, or any of its fields, needs no closer look.

    The types of the fields say what is left to ask of them; found out once for each combination that is met.
    """
    hints = _hints(kind)
    names = tuple(getattr(kind, "UNTRUSTED", kind.__struct_fields__))
    if len(names) < 2:
        return _never
    fields = attrgetter(*names)
    plans: dict[tuple[type, ...], list[tuple[int, Ready]]] = {}
    parts = {name: _ready_kinds(hints[name]) for name in names}
    seen: dict[int, Any] | None = {} if _lasts(kind) else None

    def planned(kinds: tuple[type, ...]) -> list[tuple[int, Ready]]:
        asked = [(i, parts[name].get(kinds[i], _never)) for i, name in enumerate(names)]
        plan = [(i, ready) for i, ready in asked if ready is not _always]
        if len(plans) < _PLANS_MAX:
            plans[kinds] = plan
        return plan

    def ready(value: Any) -> bool:
        if seen is not None and seen.get(id(value)) is value:
            return True
        if type(value) is not kind:
            return False
        values = fields(value)
        kinds = tuple(map(type, values))
        plan = plans.get(kinds)
        for index, is_ready in planned(kinds) if plan is None else plan:
            if not is_ready(values[index]):
                return False
        if seen is not None:
            if len(seen) >= _SEEN_MAX:
                seen.clear()
            seen[id(value)] = value  # held here, so that no other can have its id
        return True

    return ready


def _ready_kinds(hint: Any) -> dict[type, Ready]:
    """By the types that a field of the type `hint` may have as they are: what is left to ask of its value."""
    found: dict[type, Ready] = {}
    for part in _parts(hint):
        if part in _READY:
            found[part] = _READY[part]
        elif isinstance(part, type) and issubclass(part, msgspec.Struct):
            found[part] = _struct_ready(part)
    return found


def _parts(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _lasts(kind: Any) -> bool:
    """Whether a value of the struct `kind` can never change, so that it needs to be looked at only once."""
    if not kind.__struct_config__.frozen:
        return False
    hints = _hints(kind)
    return all(part in _READY for name in kind.__struct_fields__ for part in _parts(hints[name]))


def _always(value: Any) -> bool:
    return True


def _never(value: Any) -> bool:
    return False


def _is_moment(value: datetime) -> bool:
    return value.tzinfo is UTC and not value.fold


_READY: dict[Any, Ready] = {
    bool: _always,
    int: lambda value: -(2**63) <= value < 2**64,
    float: _always,
    str: str.isascii,
    bytes: _always,
    datetime: _is_moment,
    type(None): _always,
}
"""Whether a value of the very type needs no closer look."""
_PLANS_MAX, _SEEN_MAX = 256, 4_096


def _as_it_is(value: Any) -> Any:
    return value


def _blame(value: Any, kind: Any, path: str) -> str:
    """The first part of a state that cannot be saved, its place and its declared type; empty for none."""
    kind = next((part for part in _parts(kind) if part is type(value)), kind)
    if type(value) is kind and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        hints = _hints(kind)
        parts = [(f"{path}.{name}" if path else name, name) for name in hints]
        inner = [(at, getattr(value, name, None), hints[name]) for at, name in parts if hasattr(value, name)]
    elif isinstance(value, dict) and len(typing.get_args(kind)) == 2:
        inner = [(f"{path}[{_short(key)}]", part, typing.get_args(kind)[1]) for key, part in value.items()]
    elif isinstance(value, list) and len(typing.get_args(kind)) == 1:
        inner = [(f"{path}[{at}]", part, typing.get_args(kind)[0]) for at, part in enumerate(value)]
    else:
        inner = []
    for at, part, hint in inner:
        if found := _blame(part, hint, at):
            return found
    try:
        _fitter(kind)(value)
    except REFUSALS as error:
        field = f"field {path} is" if path else "it is"
        return f"{field} {_short(value)}, declared {type_text(kind)}: {_said(error)}"
    return ""


def _short(value: Any) -> str:
    """A value, the same in every process: those of other than plain types by the name of their type."""
    if type(value) in (bool, int, float, str, bytes, type(None)):
        return short_form(value)
    name = getattr(value, "__name__", None) if callable(value) else None
    return name if isinstance(name, str) else f"a {type(value).__name__}"


def _said(error: BaseException) -> str:
    return " ".join(str(error).replace("`", "").split())[:200]


def _key_text(key: bytes) -> str:
    try:
        return short_form(decode_key(key))
    except (ValueError, LookupError, SchemaError):  # the key of a step's own
        return key.hex()


def _struct_settler(kind: type[msgspec.Struct]) -> Settle:
    hints = _hints(kind)
    settlers = [(n, inner) for n in kind.__struct_fields__ if (inner := _settler(hints[n])) is not None]
    frozen = kind.__struct_config__.frozen

    def settle(value: Any) -> Any:
        changed: dict[str, Any] = {}
        for name, inner in settlers:
            found = getattr(value, name)
            if (settled := inner(found)) is not found:
                changed[name] = settled
        if changed and frozen:
            return msgspec.structs.replace(value, **changed)
        for name, settled in changed.items():
            setattr(value, name, settled)
        return value

    return settle


def _holds_float(kind: Any) -> bool:
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return any(_holds_float(hint) for hint in _hints(kind).values())
    return kind in (float, Any) or any(_holds_float(part) for part in typing.get_args(kind))
