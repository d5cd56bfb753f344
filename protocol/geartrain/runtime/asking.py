"""How a question for the state of a key is read and answered: the key out of a text, the answer of a cell.

Stands beside the fragment, on whatever tier holds the step's state. Guarantees: nothing is opened, fed or
saved. What user code raises while an answer is made is the sentence of a refusal.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from geartrain.errors import USER_ERRORS, QuestionError, SchemaError
from geartrain.graph.conform import describe
from geartrain.graph.graph import Graph, key_step
from geartrain.graph.operator import Services
from geartrain.operators.key_by import KeyBy
from geartrain.records.keys import decode_key, encode_key
from geartrain.schema import FieldType, derive
from geartrain.state.keyed import DictBackend, KeyedState

ANSWER_BYTES_MAX = 1 << 20
"""Of the state of one key as JSON."""

_KINDS: Mapping[FieldType, Any] = {
    FieldType.STR: str,
    FieldType.INT64: int,
    FieldType.BOOL: bool,
    FieldType.BYTES: bytes,
}
_INT = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)
_BOOLS = {"true": True, "false": False}
_FORMS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    bytes: "hexadecimal digits",
    tuple: 'a JSON list, such as ["north", 7]',
}


def check_asked(graph: Graph, step: str) -> None:
    """Raise `QuestionError` unless `step` is a step of `graph` that may keep a state for each key."""
    found = next((one for one in graph.steps if one.id == step), None)
    if found is None:
        names = ", ".join(one.id for one in graph.steps if one.operator.stateful)
        raise QuestionError(f"there is no step {step!r}; those with a state: {names or 'none'}")
    if not found.operator.stateful:
        raise QuestionError(f"step {step!r} keeps no state of a key: ask a step that does")


def keys_of(graph: Graph, step: str, text: str) -> list[bytes]:
    """The encoded keys that `text` may mean for a step: one where the type of its keys is known, else one of
    each type that fits.

    Raises `QuestionError` for a text that cannot be a key.
    """
    kind = _key_kind(graph, step)
    found: list[bytes] = []
    said = ""
    for one in (tuple, str, int, bool) if kind is None else (kind,):
        try:
            found.append(encode_key(_converted(text, one)))
        except (ValueError, SchemaError) as error:
            said = str(error) if isinstance(error, SchemaError) else f"write {_form(one)}"
    if not found:
        raise QuestionError(f"step {step!r}: {_short(text)} is no key of it: {said}")
    return found


def _key_kind(graph: Graph, step: str) -> Any:
    """The type of a step's keys, None where nobody has said it."""
    keyed = key_step(graph, graph[step].inputs[0].step)
    while keyed is not None and graph[keyed.id].operator.row_key is not None:  # of partial aggregates
        keyed = key_step(graph, keyed.inputs[0].step)
    if keyed is None:
        raise QuestionError(f"step {step!r} has no keys: its state cannot be asked for by key")
    operator = keyed.operator
    if not isinstance(operator, KeyBy):
        return None
    if operator.field is not None:
        fields = {field.name: field.type for field in derive(keyed.out).fields}
        return _KINDS.get(fields[operator.field])
    try:
        kind = typing.get_type_hints(operator.function).get("return")
    except Exception:  # noqa: BLE001 - of whatever a user calls a function
        return None
    return kind if kind in _FORMS or typing.get_origin(kind) is tuple else None


def _converted(text: str, kind: Any) -> Any:
    """The key; raises `ValueError` where `text` is no `kind`."""
    if kind is str:
        return text
    if kind is int:
        if not _INT.match(text):
            raise ValueError(text)
        return int(text)
    if kind is bool:
        if text not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text]
    if kind is bytes:
        return bytes.fromhex(text.removeprefix("0x"))
    try:
        parts = json.loads(text)
    except RecursionError:
        raise ValueError(text) from None
    if not isinstance(parts, list):
        raise ValueError(text)
    kinds = [one for one in typing.get_args(kind) if one is not Ellipsis]
    if len(kinds) == 1 and Ellipsis in typing.get_args(kind):
        kinds *= len(parts)
    if not kinds:
        kinds = [type(part) for part in parts]
    return tuple(_part(part, one) for part, one in zip(parts, kinds, strict=True))


def _part(part: Any, kind: Any) -> Any:
    if kind is bytes and isinstance(part, str):
        return bytes.fromhex(part)
    if type(part) is not kind or kind not in _FORMS:
        raise ValueError(str(part))
    return part


def _form(kind: Any) -> str:
    return _FORMS[kind if kind in _FORMS else tuple]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def shown_key(key: bytes) -> Any:
    """An encoded key as JSON has it: bytes in hexadecimal digits, a tuple as a list."""
    return _shown(decode_key(key))


def _shown(key: Any) -> Any:
    if isinstance(key, tuple):
        return [_shown(part) for part in key]
    return key.hex() if isinstance(key, bytes) else key


def tell(graph: Graph, step: str, key: bytes, cell: bytes) -> dict[str, Any]:
    """What a saved cell of a step holds, as JSON has it: the fields of `Told`.

    Raises `QuestionError` where it cannot be told.
    """
    found = graph[step]
    inputs = tuple(graph[one.step].out for one in found.inputs)
    services = Services(step, found.out, lambda letter: None, KeyedState(DictBackend()), inputs)
    try:
        raw = msgspec.json.encode(found.operator.told(services, key, cell))
    except QuestionError:
        raise
    except USER_ERRORS as error:  # the result of a window is the user's own
        raise QuestionError(f"step {step!r}: its state cannot be told: {describe(error)}") from None
    if len(raw) > ANSWER_BYTES_MAX:
        raise QuestionError(
            f"step {step!r}: the state of this key has {len(raw):,} bytes as JSON; {ANSWER_BYTES_MAX:,} are "
            "the most: send what you need of it to a table"
        )
    return dict(msgspec.json.decode(raw, type=dict[str, Any]))
