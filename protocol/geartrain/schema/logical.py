"""Field types beyond the six plain ones, each over a plain one: Decimal, enum, and anything nested.

Stands between a Python value and its column. On the wire, in the log and in tables the column is one of the
plain types; the schema says what it means. Guarantees: a value in its normal form comes back from its column
unchanged.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import Enum
from typing import Any, Protocol

import msgspec

from geartrain.errors import SchemaError
from geartrain.errors.conversion import read_conversion
from geartrain.schema.fields import FieldType
from geartrain.schema.notes import without_notes

DIGITS_MAX = 18
"""Digits of a Decimal field: its unscaled value is an int64."""
DEPTH_MAX = 100
"""Lists, dictionaries and records within one another in a nested field."""
_DEPTH_MAX = 8
_SHOWN_CHARS = 60


class Digits(msgspec.Struct, frozen=True):
    """How many decimal digits a Decimal field has.

    Args:
        precision: all of them, 1 to 18.
        scale: those behind the point, 0 to `precision`.

    Raises:
        SchemaError: for others.

    >>> from decimal import Decimal
    >>> from typing import Annotated
    >>> from geartrain import Digits, Record
    >>> class Order(Record):
    ...     price: Annotated[Decimal, Digits(12, 2)]
    """

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= self.precision <= DIGITS_MAX or not self.precision:
            raise SchemaError(
                f"Digits({self.precision}, {self.scale}): use 1 to {DIGITS_MAX} digits, of which none or "
                "some are behind the point"
            )


class Logical(Protocol):
    """How values of one field are brought into their column and back.

    text: its name in a schema; plain: the type of the column.
    """

    @property
    def text(self) -> str:
        """Its name in a schema."""
        ...

    @property
    def plain(self) -> FieldType:
        """The type of its column."""
        ...

    def fit(self, value: Any) -> Any:
        """`value` in its normal form; raises `SchemaError` with half a sentence where it is no such value."""
        ...

    def lower(self, value: Any) -> Any:
        """A value in normal form as the column holds it."""
        ...

    def lift(self, raw: Any) -> Any:
        """The value of what a column holds; raises `SchemaError` for what `lower` cannot have made."""
        ...

    def parse(self, text: str) -> Any:
        """The value that a person wrote; raises `ValueError` with a sentence."""
        ...


class DecimalField(msgspec.Struct, frozen=True):
    """A Decimal of so many digits; its column holds the unscaled int64."""

    digits: Digits
    plain = FieldType.INT64

    @property
    def text(self) -> str:
        """`decimal(precision,scale)`."""
        return f"decimal({self.digits.precision},{self.digits.scale})"

    def fit(self, value: Any) -> Any:
        """With exactly `scale` digits behind the point; more than these are refused, not rounded."""
        if type(value) is int:
            value = Decimal(value)
        if type(value) is not Decimal:
            raise SchemaError(f"must be a Decimal, got {type(value).__name__}")
        if not value.is_finite():
            raise SchemaError(f"is {value}, and {self.text} has neither NaN nor infinity")
        exact = Context(prec=self.digits.precision, traps=[Inexact, InvalidOperation])
        try:
            fitted = value.quantize(Decimal((0, (1,), -self.digits.scale)), context=exact)
        except (Inexact, InvalidOperation):
            shown = str(value)
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."
            raise SchemaError(f"is {shown}, which does not fit {self.text}") from None
        return fitted or abs(fitted)  # a column of ints has one zero

    def lower(self, value: Decimal) -> int:
        """The unscaled value."""
        return int(value.scaleb(self.digits.scale))

    def lift(self, raw: int) -> Decimal:
        """The Decimal of an unscaled value."""
        if abs(raw) >= 10**self.digits.precision:
            raise SchemaError(f"a column of {self.text} holds the unscaled value {raw}")
        return Decimal(raw).scaleb(-self.digits.scale)

    def parse(self, text: str) -> Any:
        """A decimal number, perhaps with a power of ten."""
        if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text.strip()):
            raise ValueError(f"{text[:60]!r} is not a decimal number")
        try:
            return self.fit(Decimal(text.strip()))
        except SchemaError as error:
            raise ValueError(f"the number {error}") from None


class EnumField(msgspec.Struct, frozen=True):
    """A member of an Enum; its column holds the member's name."""

    kind: type[Enum]
    plain = FieldType.STR

    @property
    def text(self) -> str:
        """`enum(A,B,...)`: the names of the members in their order."""
        return f"enum({','.join(self.kind.__members__)})"

    def fit(self, value: Any) -> Any:
        """A member of this very Enum."""
        if type(value) is not self.kind:
            raise SchemaError(f"must be a {self.kind.__name__}, got {type(value).__name__}")
        return value

    def lower(self, value: Enum) -> str:
        """The member's name."""
        return value.name

    def lift(self, raw: str) -> Enum:
        """The member of a name."""
        try:
            return self.kind[raw]
        except KeyError:
            raise SchemaError(f"a column of {self.text} holds {raw[:60]!r}") from None

    def parse(self, text: str) -> Any:
        """A member's name."""
        try:
            return self.kind[text.strip()]
        except KeyError:
            names = ", ".join(self.kind.__members__)
            raise ValueError(f"{text[:60]!r} is none of {names}") from None


class NestedField:
    """A list, dictionary, nested record or untyped value; its column holds msgpack."""

    plain = FieldType.BYTES

    def __init__(self, kind: Any) -> None:
        """`kind`: its Python type; raises `SchemaError` for one that msgpack cannot carry."""
        self.text = f"nested({type_text(kind)})"
        try:
            self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(kind).decode
        except (TypeError, ValueError) as error:
            raise SchemaError(str(error)) from None
        self._is_open = _is_open(kind)
        self._parse: Callable[[str], Any] = msgspec.json.Decoder(kind).decode

    def fit(self, value: Any) -> Any:
        """As it comes back from its bytes, so that no step can tell whether it has travelled."""
        try:
            packed = msgspec.msgpack.encode(value)
            fitted = self._decode(packed)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise SchemaError(f"does not fit {self.text}: {_misfit(error)}") from None
        if self._is_open and len(packed) > DEPTH_MAX and _is_deeper(msgspec.msgpack.decode(packed)):
            raise SchemaError(f"does not fit {self.text}: {_TOO_DEEP}")
        return fitted

    def lower(self, value: Any) -> bytes:
        """Its msgpack."""
        return msgspec.msgpack.encode(value)

    def lift(self, raw: bytes) -> Any:
        """The value of its msgpack."""
        try:
            return self._decode(raw)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise SchemaError(f"a column of {self.text} holds something else: {_misfit(error)}") from None

    def parse(self, text: str) -> Any:
        """A value written as JSON."""
        try:
            return self._parse(text)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            raise ValueError(f"{text[:60]!r} is not the JSON of {self.text}") from None


_TOO_DEEP = f"it is nested deeper than {DEPTH_MAX} levels"


def _misfit(error: Exception) -> str:
    """Why msgspec refuses a value."""
    if isinstance(error, UnicodeError):
        return "it holds text that is not valid Unicode"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, OverflowError):
        return "it holds an int beyond 64 bits, or a time outside of the years 1 to 9999"
    if isinstance(error, msgspec.ValidationError):
        place, _ = read_conversion(error)
        return f"its part at {place} has another type" if place else "it has another type"
    return "it holds an object that is no text, number, time, list, dictionary or record"


def _is_open(kind: Any, depth: int = 0) -> bool:
    """Whether values of a type may be nested to any depth: it is untyped somewhere, or holds itself."""
    kind, _ = without_notes(kind)
    if kind in (Any, list, dict, tuple) or depth > DEPTH_MAX:
        return True
    parts: list[Any] = list(typing.get_args(kind))
    if not parts and isinstance(kind, type) and _has_fields(kind):
        parts = list(_fields_of(kind).values())
    return any(_is_open(part, depth + 1) for part in parts)


def _is_deeper(value: Any) -> bool:
    """Whether lists and dictionaries lie within one another deeper than they may."""
    layer = [one for one in [value] if isinstance(one, list | dict)]
    for _ in range(DEPTH_MAX):
        within = (part for one in layer for part in (one.values() if isinstance(one, dict) else one))
        layer = [part for part in within if isinstance(part, list | dict)]
    return bool(layer)


def type_text(kind: Any, depth: int = 0) -> str:
    """A Python type as part of a schema: the same text for the same layout, whatever its classes are
    called.
    """
    kind, _ = without_notes(kind)
    arguments = typing.get_args(kind)
    if not arguments and isinstance(kind, type):
        if depth > _DEPTH_MAX or not _has_fields(kind):
            return kind.__name__
        parts = _fields_of(kind).items()
        return "{" + ",".join(f"{name}:{type_text(part, depth + 1)}" for name, part in parts) + "}"
    origin = typing.get_origin(kind)
    inner = ["..." if part is Ellipsis else type_text(part, depth + 1) for part in arguments]
    if origin in (typing.Union, types.UnionType):
        return "|".join(inner)
    name = str(getattr(origin or kind, "__name__", kind))
    return f"{name}[{','.join(inner)}]" if inner else name


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def _fields_of(kind: type) -> dict[str, Any]:
    """The types of the fields of a record, without what its class has."""
    hints = typing.get_type_hints(kind).items()
    return {name: part for name, part in hints if typing.ClassVar not in (part, typing.get_origin(part))}
