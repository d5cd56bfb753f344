"""JSON documents straight into records, where each field is a plain value at the top of the document.

Beside `geartrain_devices.json_fields`, which reads any document by paths and says what is wrong with one.
Guarantees: what is read here is what the paths would have given, to the last bit. All else is refused with
None and never with an error, so that the reasons of dead letters come from one place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME
from geartrain.schema import Field, FieldType, RowCodec, Schema
from geartrain.schema.storable import INT64

KEYS_MAX = 64
"""Keys of documents that belong to no field, at the most: a document with more of them is refused."""

_TYPED: Mapping[FieldType, tuple[type, Any]] = {
    FieldType.BOOL: (bool, bool),
    FieldType.INT64: (int, INT64),
    FieldType.FLOAT64: (float, float),
    FieldType.STR: (str, str),
}

Path = tuple[str | int, ...]
Reading = Callable[[bytes], tuple[int | None, Any] | None]


class PlainField(msgspec.Struct, frozen=True):
    """A field that the decoder reads: its key in the document, its type as msgspec takes it, and its default,
    `msgspec.NODEFAULT` where it must have one.
    """

    key: str
    hint: Any
    default: Any


def plain_fields(kind: Any, schema: Schema, paths: Sequence[Path]) -> list[PlainField] | None:
    """The fields of a record type, None where one has to be read by its path or a constructor may say no."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct) or hasattr(kind, "__post_init__"):
        return None
    parameters = inspect.signature(kind).parameters.values()
    fields: list[PlainField] = []
    for field, path, parameter in zip(schema.fields, paths, parameters, strict=True):
        if parameter.name != field.name or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            return None
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        plain = _plain_field(field, path, default)
        if plain is None or plain.key in [other.key for other in fields]:
            return None
        fields.append(plain)
    return fields


def _plain_field(field: Field, path: Path, default: Any) -> PlainField | None:
    key, *rest = path
    if rest or not isinstance(key, str) or key.startswith("$") or field.logical or field.type not in _TYPED:
        return None
    kind, hint = _TYPED[field.type]
    if field.optional and (default is None or default is msgspec.NODEFAULT):
        return PlainField(key, hint | None, None)
    # To the paths, the null of a field with a default is a missing one; here it is refused.
    fits = type(default) is kind and not RowCodec(kind).conform([default])[1]
    return PlainField(key, hint, default) if fits or default is msgspec.NODEFAULT else None


class TypedReader:
    """Documents as records, through a decoder that is made for their keys.

    msgspec does not check all of what it skips (text that is no UTF-8, numbers out of range), so nothing is
    skipped. Keys that belong to no field are learnt, and their values decoded for nothing.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        fields: list[PlainField],
        time_key: str | None,
        time_of: Callable[[Any], int],
        unit_us: int,
    ) -> None:
        """make: a record of its fields in this order, without a check of its own; time_key: where the event
        time stands, None where documents have none; time_of: reads it, or raises `ValueError`; unit_us: of a
        time that is a whole number.
        """
        self._make, self._fields = make, fields
        self._time_key, self._time_of, self._unit_us = time_key, time_of, unit_us
        self._others: list[str] = []
        self._prepare()

    def _prepare(self) -> None:
        names = ["time" if f.key == self._time_key else f"field_{n}" for n, f in enumerate(self._fields)]
        keys = {name: field.key for name, field in zip(names, self._fields, strict=True)}
        shape = [(name, f.hint, f.default) for name, f in zip(names, self._fields, strict=True)]
        if self._time_key is not None and "time" not in keys:
            keys["time"] = self._time_key
            shape.append(("time", Any, msgspec.NODEFAULT))
        for n, key in enumerate(self._others):
            keys[f"other_{n}"] = key
            shape.append((f"other_{n}", Any, None))
        kind = msgspec.defstruct(
            "Document", shape, rename=keys, kw_only=True, forbid_unknown_fields=True, gc=False
        )
        self._known = frozenset(keys.values())
        self.read = self._reading(msgspec.json.Decoder(kind).decode, attrgetter(*names))
        """(event time in microseconds or None where documents have none, the record); None: refused."""

    def _reading(self, decode: Callable[[bytes], Any], values: Callable[[Any], Any]) -> Reading:
        make, is_one, is_timed = self._make, len(self._fields) == 1, self._time_key is not None
        time_of, unit_us = self._time_of, self._unit_us
        least, end = EARLIEST_TIME // unit_us, END_OF_TIME // unit_us

        def read(raw: bytes) -> tuple[int | None, Any] | None:
            try:
                document, time_us = decode(raw), None
                if is_timed:
                    time = document.time
                    time_us = time * unit_us if type(time) is int and least < time < end else time_of(time)
            except (ValueError, RecursionError):  # msgspec's errors are among them
                return None
            return time_us, make(values(document)) if is_one else make(*values(document))

        return read

    def learn(self, document: Any) -> None:
        """Take the keys of a document that was refused."""
        if not isinstance(document, dict):
            return
        new = [key for key in document if key not in self._known]
        if new and len(self._others) + len(new) <= KEYS_MAX:
            self._others += new
            self._prepare()
