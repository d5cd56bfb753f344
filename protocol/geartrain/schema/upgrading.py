"""Records of a former type, as records of the present one: what a record type says by its `upgrade`.

Where a revision has given the records of a channel another type. Rows of the former one still come, from
devices that have not gone over and from the log. Guarantees: a record goes from type to type until no
function takes it, and is then of the present type, in its normal form. Types are known by their layout, so a
former class may be called otherwise than it was. Of a type that was given up no record is read, by name.
Pure, but for what a user's function does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from geartrain.errors import SchemaError
from geartrain.records.record import Record
from geartrain.schema.codec import RowCodec, short_form
from geartrain.schema.derive import derive
from geartrain.schema.fields import Schema

Function = Callable[[Any], Any]


def functions_of(kind: Any) -> Mapping[Any, Function]:
    """By former type, what a record type says itself; what it inherits is about another type."""
    if not isinstance(kind, type) or not issubclass(kind, Record) or "upgrade" in kind.__struct_fields__:
        return {}
    said = kind.__dict__.get("upgrade", {})
    return said if isinstance(said, Mapping) else {kind: said}


def former_schemas(kind: Any) -> tuple[Schema, ...]:
    """Of each former type of which records of `kind` can be made, the schema."""
    return tuple(derive(former) for former in functions_of(kind))


def check_upgrade(where: str, kind: Any) -> None:
    """Raise `SchemaError`, which begins with `where`, where a record type's `upgrade` cannot be meant."""
    functions = functions_of(kind)
    if not functions:
        return
    name = kind.__name__
    if not isinstance(kind.__dict__["upgrade"], Mapping):
        raise SchemaError(f"{where}: {name}.upgrade is to be a dict of former types and functions")
    known: dict[str, str] = {derive(kind).layout: name}
    for former, function in functions.items():
        if not isinstance(former, type) or not issubclass(former, Record):
            raise SchemaError(f"{where}: {name}.upgrade names {short_form(former)}, which is no Record")
        if not callable(function):
            raise SchemaError(f"{where}: {name}.upgrade[{former.__name__}] is no function of such a record")
        layout = derive(former).layout
        if layout in known:
            raise SchemaError(
                f"{where}: {name}.upgrade: {former.__name__} has the fields of {known[layout]}: leave it out"
            )
        known[layout] = former.__name__


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Stands for what would read the rows of a type that an update has given up."""

    schema: Schema

    @property
    def why(self) -> str:
        """Why a record of it is a dead letter."""
        name = self.schema.name or "without a name"
        given_up = "records of its type were given up by an update with --dead-letter-old"
        return f"{given_up}: {name} came from a device that had not gone over"[:300]


class Upgrading:
    """Reads the rows of a channel whose records are of type `kind`, in whichever type they came."""

    def __init__(self, kind: Any, given_up: Collection[str] = ()) -> None:
        """given_up: the layouts of former types that it need not know. Raises `SchemaError` for what can be
        no record.
        """
        self.codec, self._given_up = RowCodec(kind), frozenset(given_up)
        self._functions = dict(functions_of(kind))
        self._formers = {derive(former).layout: former for former in self._functions}
        self._codecs: dict[str, RowCodec] = {}

    def codec_of(self, schema: Schema) -> RowCodec | GivenUp | None:
        """What reads rows of a schema, None where the type does not know it; that of the present type where
        these have its layout. One that it knows is not given up.
        """
        layout = schema.layout
        if layout == self.codec.schema.layout:
            return self.codec
        if layout in self._formers and layout not in self._codecs:
            self._codecs[layout] = RowCodec(self._formers[layout])
        if layout in self._given_up and layout not in self._formers:
            return GivenUp(schema)
        return self._codecs.get(layout)

    def upgraded(self, value: Any) -> Any:
        """A record of a former type as one of the present; raises what a user's function does, and
        `SchemaError` for what is no record of the present type.
        """
        functions = dict(self._functions)  # each is asked once at the most
        while (function := functions.pop(type(value), None)) is not None:
            value = function(value)
        (value,), wrong = self.codec.conform([value])
        if wrong:
            raise SchemaError(wrong[0][1])
        return value
