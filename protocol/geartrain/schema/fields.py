"""A schema: named, typed fields. Stands between a record's Python type and every form that it takes
elsewhere.

Guarantees: `schema_id` is a pure function of the fields, so two programs that agree on it agree on the
layout.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec

from geartrain.errors import SchemaError
from geartrain.schema.notes import Note


class FieldType(Enum):
    """The type of one field. DATETIME is int64 microseconds since 1970 UTC outside of Python."""

    BOOL = "bool"
    INT64 = "int64"
    FLOAT64 = "float64"
    STR = "str"
    BYTES = "bytes"
    DATETIME = "datetime"


class Field(msgspec.Struct, frozen=True, eq=False):
    """One field: its name, the type of its column, whether None is a value, and what the column means beyond
    its type (`decimal(12,2)`, `enum(OPEN,SHUT)`, `nested(list[float])`).

    note: its unit and description. Two fields are equal whatever their notes are.
    """

    name: str
    type: FieldType
    optional: bool = False
    logical: str = ""
    note: Note = Note()

    def _layout(self) -> tuple[str, FieldType, bool, str]:
        return self.name, self.type, self.optional, self.logical

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self._layout() == other._layout()

    def __ne__(self, other: object) -> bool:  # a Struct has one of its own, which knows nothing of that above
        return not self == other

    def __hash__(self) -> int:
        return hash(self._layout())

    @property
    def type_name(self) -> str:
        """Its type for people."""
        return f"{self.logical or self.type.value}{' | None' if self.optional else ''}"


class Schema(msgspec.Struct, frozen=True, dict=True):
    """The layout of a record. A scalar type is a schema with `scalar` set and the one field `value`."""

    name: str
    fields: tuple[Field, ...]
    scalar: bool = False

    @cached_property
    def schema_id(self) -> str:
        """16 hexadecimal digits of the blake2b of `to_json()`."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=8).hexdigest()

    @property
    def notes(self) -> dict[str, Note]:
        """By field, the notes of those that have some."""
        return {f.name: f.note for f in self.fields if f.note.text}

    @cached_property
    def layout(self) -> str:
        """The same text for the same columns, whatever the record's class is called."""
        return Schema("", self.fields, self.scalar).to_json()

    def to_json(self, *, noted: bool = False) -> str:
        """The canonical text of the schema; noted: with the notes of its fields, which are no part of it."""
        fields = [
            [f.name, f.type.value, f.optional, *([f.logical] if f.logical else [])] for f in self.fields
        ]
        whole: dict[str, Any] = {"name": self.name, "fields": fields, "scalar": self.scalar}
        if noted and self.notes:
            whole["notes"] = msgspec.to_builtins(self.notes)
        text = msgspec.json.encode(whole).decode()
        if text.isascii() and text.isprintable():
            return text
        import json  # in whose words the rest is escaped: the text is what schema ids are made of

        return json.dumps(whole, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Schema:
        """Read what `to_json` wrote; raises `SchemaError` for anything else (the text may come from a
        device).
        """
        import json  # no device reads a schema

        try:
            raw: Any = json.loads(text)
            notes = msgspec.convert(raw.get("notes", {}), dict[str, Note])
            fields = tuple(_read_field(one, notes) for one in raw["fields"])
            schema = Schema(str(raw["name"]), fields, bool(raw["scalar"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SchemaError(f"a schema that was announced cannot be read: {error}") from None
        names = [f.name for f in schema.fields]
        if len(set(names)) != len(names) or not all(
            n.isidentifier() and not n.startswith("_") for n in names
        ):
            raise SchemaError(
                f"a schema that was announced has field names that are doubled or not plain: {names}"
            )
        if schema.scalar and len(names) != 1:
            raise SchemaError("a scalar schema that was announced has other than one field")
        return schema


def _read_field(raw: list[Any], notes: dict[str, Note]) -> Field:
    name, kind, optional, *logical = raw
    if len(logical) > 1:
        raise ValueError(f"field {name!r:.60} has more than a name, a type and whether it may be None")
    text = str(logical[0]) if logical else ""
    return Field(str(name), FieldType(kind), bool(optional), text, notes.get(str(name), Note()))
