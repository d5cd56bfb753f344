"""Values of JSON as values of Python types: numbers exactly as they are written, and a reason for the rest.

Under every source that reads JSON, and under patterns, whose groups are texts. Numbers with a point come as
`Decimal`, so that none passes through a float but one that is meant to be a float. Guarantees: what does not
fit raises `NoRecordError`: one sentence that names the part of the document, what was found and what to
change, and a code.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
import typing
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import msgspec

from geartrain.errors import SchemaError
from geartrain.printable import shortened
from geartrain.records.event_time import to_datetime
from geartrain.schema.derive import field_names, is_record_type, value_type
from geartrain.schema.logical import DEPTH_MAX, DecimalField, Digits, type_text
from geartrain.schema.notes import without_notes
from geartrain.schema.storable import INT64_MAX, INT64_MIN
from geartrain_devices.no_record import BAD_VALUE, MISSING_VALUE, NAN, NoRecordError
from geartrain_devices.written_times import NoTimeError, TimeOptions, Times

NUMBER_AS_TEXT: Final = "number_as_text"
"""The code of a reject with a number that is written as a text."""
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NAN = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_BOOLS: Final[Mapping[str, bool]] = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}
_EXPONENT_MAX: Final = 400
"""Powers of ten that a whole number may be written with."""


class ValueOptions(TimeOptions):
    """The options of every source that reads JSON or texts.

    Args:
        numbers_as_text: whether a number may be written as a text, such as "20.5".
        nan: whether NaN, Infinity and -Infinity are read, which JSON does not have.
    """

    numbers_as_text: bool = False
    nan: bool = False


VALUE_OPTIONS: Final = tuple(option.name for option in dataclasses.fields(ValueOptions))
"""Their names."""

Reading = Callable[[Any, str], Any]
"""From a value of JSON, and what the sentence of an error calls it, to a value of Python."""


class Values:
    """How the values of one source are read."""

    def __init__(self, times: Times, options: ValueOptions, *, from_text: bool = False) -> None:
        """from_text: whether values are texts, as groups of a pattern are, and stand for numbers as well."""
        self._times, self._from_text = times, from_text
        self._takes_texts, self._takes_nan = from_text or options.numbers_as_text, options.nan
        self._plain: dict[Any, Reading] = {
            bool: self._bool,
            int: self._int,
            float: self._float,
            str: self._str,
            bytes: self._bytes,
            datetime: self._datetime,
            Any: self._any,
        }

    def reader(self, hint: Any, depth: int = 0) -> Reading:
        """How values of a type are read: of a field, or of what is nested in one."""
        hint, _ = without_notes(hint)
        if hint in self._plain:
            return self._plain[hint]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            others = [one for one in arguments if one is not type(None)]
            if len(others) == 1 and len(others) < len(arguments):
                return self._optional(self.reader(value_type(hint), depth), value_type(hint))
        elif origin is typing.Annotated and hint.__origin__ is Decimal:
            digits = [one for one in hint.__metadata__ if isinstance(one, Digits)]
            if digits:
                return self._decimal(DecimalField(digits[0]))
        elif hint is Decimal:
            return self._decimal(None)
        elif isinstance(hint, type) and issubclass(hint, Enum):
            return self._enum(hint)
        elif depth < DEPTH_MAX:
            if hint is list or origin is list:
                return self._list(self.reader(arguments[0] if arguments else Any, depth + 1))
            if (hint is dict or origin is dict) and (not arguments or arguments[0] is str):
                return self._dict(self.reader(arguments[1] if arguments else Any, depth + 1))
            if is_record_type(hint) and _is_plain_record(hint):
                return self._record(hint, depth)
        return self._other(hint)

    def _bool(self, value: Any, what: str) -> bool:
        if type(value) is bool:
            return value
        if self._from_text and isinstance(value, str) and value.strip().lower() in _BOOLS:
            return _BOOLS[value.strip().lower()]
        raise _unfit(what, value, "true or false")

    def _number(self, value: Any, what: str, wanted: str) -> int | float | Decimal:
        """An int or a Decimal as it is written; a float for NaN and infinity alone."""
        if type(value) in (int, Decimal, float):
            found: int | float | Decimal = value
            return found
        if isinstance(value, str):
            text = value.strip()
            if NUMBER.fullmatch(text):
                if self._takes_texts:
                    return Decimal(text)
                raise NoRecordError(
                    f"{what} is {shown_value(value)}, and must be {wanted}: set numbers_as_text = true to "
                    "read numbers that are written as texts",
                    NUMBER_AS_TEXT,
                )
            if _NAN.fullmatch(text):
                return float(text)
        raise _unfit(what, value, wanted)

    def _float(self, value: Any, what: str) -> float:
        if type(value) is float and math.isfinite(value):
            return value
        number = self._number(value, what, "a number")
        if isinstance(number, float) and not math.isfinite(number):
            if self._takes_nan:
                return number
            raise NoRecordError(f"{what} is {shown_value(value)}: set nan = true to read it", NAN)
        try:
            found = float(number)
        except OverflowError:
            found = math.inf
        if math.isinf(found):
            raise NoRecordError(
                f"{what} is {_cut(str(number))}, which is beyond a float of 64 bits", BAD_VALUE
            )
        return found

    def _int(self, value: Any, what: str) -> int:
        number = value if type(value) is int else self._number(value, what, "a whole number")
        if type(value) is Decimal and _is_minus_zero(value):
            return 0
        if isinstance(number, Decimal):
            if not self._takes_texts or type(value) is Decimal:
                raise _unfit(what, value, "a whole number")
            if abs(number.adjusted()) > _EXPONENT_MAX or number != number.to_integral_value():
                raise _unfit(what, value, "a whole number")
            number = int(number)
        if isinstance(number, float):
            raise _unfit(what, value, "a whole number")
        if not INT64_MIN <= number <= INT64_MAX:
            raise NoRecordError(f"{what} is {_cut(str(number))}, which does not fit into 64 bits", BAD_VALUE)
        return number

    def _str(self, value: Any, what: str) -> str:
        if isinstance(value, str):
            return value
        raise _unfit(what, value, "a text")

    def _bytes(self, value: Any, what: str) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, str):
            if self._from_text:
                return value.encode()
            try:
                return b64decode(value, validate=True)
            except (Base64Error, ValueError):
                pass
        raise _unfit(what, value, "bytes as base64")

    def _datetime(self, value: Any, what: str) -> datetime:
        try:
            if isinstance(value, str):
                return to_datetime(self._times.of_text(value))
            if type(value) in (int, Decimal) and self._times.takes_numbers:
                return to_datetime(self._times.of_number(value))
        except NoTimeError as error:
            raise NoRecordError(f"{what}: {error}", BAD_VALUE) from None
        except OverflowError:
            raise NoRecordError(
                f"{what} is {shown_value(value)}, which is beyond the year 9999", BAD_VALUE
            ) from None
        if type(value) in (int, Decimal):
            raise NoRecordError(
                f'{what} is {shown_value(value)}: set time_unit = "s", "ms", "us" or "ns" where it counts '
                "from 1970",
                BAD_VALUE,
            )
        raise _unfit(what, value, "a time")

    def _any(self, value: Any, what: str, depth: int = 0) -> Any:
        """An untyped value, whose numbers with a point are floats."""
        if type(value) is Decimal and _is_minus_zero(value):
            return 0
        if type(value) is Decimal or type(value) is float:
            return self._float(value, what)
        if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
            raise NoRecordError(f"{what} is {_cut(str(value))}, which does not fit into 64 bits", BAD_VALUE)
        if depth >= DEPTH_MAX and isinstance(value, list | dict):
            raise NoRecordError(f"{what} is nested deeper than {DEPTH_MAX} levels", BAD_VALUE)
        if isinstance(value, list):
            return [self._any(one, f"{what}[{n}]", depth + 1) for n, one in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._any(one, f"{what}.{key}", depth + 1) for key, one in value.items()}
        return value

    def _optional(self, reading: Reading, kind: Any) -> Reading:
        empty_is_none = self._from_text and kind is not str

        def read(value: Any, what: str) -> Any:
            if value is None or (empty_is_none and value == ""):
                return None
            return reading(value, what)

        return read

    def _decimal(self, form: DecimalField | None) -> Reading:
        def read(value: Any, what: str) -> Any:
            # A decimal number may always be a text: so programs write it that do not trust floats.
            if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
                number: Any = Decimal(value.strip())
            else:
                number = self._number(value, what, "a decimal number")
            if isinstance(number, float) and not math.isfinite(number):
                raise NoRecordError(
                    f"{what} is {shown_value(value)}, and must be a decimal number: it has no NaN", NAN
                )
            number = Decimal(repr(number)) if isinstance(number, float) else number
            try:
                return number if form is None else form.fit(number)
            except SchemaError:
                digits = "" if form is None else f"{form.text}"
                raise NoRecordError(
                    f"{what} is {_cut(str(number))}, which does not fit {digits}", BAD_VALUE
                ) from None

        return read

    def _enum(self, kind: type[Enum]) -> Reading:
        def read(value: Any, what: str) -> Any:
            plain = float(value) if type(value) is Decimal else value
            try:
                return kind(plain)
            except ValueError:
                pass
            if isinstance(value, str) and value.strip() in kind.__members__:
                return kind[value.strip()]
            members = ", ".join(repr(one.value) for one in kind)
            raise _unfit(what, value, f"one of {_cut(members, 200)}")

        return read

    def _list(self, reading: Reading) -> Reading:
        def read(value: Any, what: str) -> Any:
            if isinstance(value, list):
                return [reading(one, f"{what}[{n}]") for n, one in enumerate(value)]
            raise _unfit(what, value, "a list")

        return read

    def _dict(self, reading: Reading) -> Reading:
        def read(value: Any, what: str) -> Any:
            if isinstance(value, dict):
                return {key: reading(one, f"{what}.{key}") for key, one in value.items()}
            raise _unfit(what, value, "an object")

        return read

    def _record(self, kind: Any, depth: int) -> Reading:
        hints = typing.get_type_hints(kind, include_extras=True)
        parts: list[tuple[str, Reading | None]] = [(name, None) for name in field_names(kind)]
        defaults = defaults_of(kind)

        def read(value: Any, what: str) -> Any:
            if not isinstance(value, dict):
                raise _unfit(what, value, "an object")
            found = {}
            for place, (name, reading) in enumerate(parts):
                if reading is None:  # made at first need: a type may hold itself
                    reading = self.reader(hints[name], depth + 1)
                    parts[place] = (name, reading)
                if name in value:
                    found[name] = reading(value[name], f"{what}.{name}")
                elif name not in defaults:
                    raise NoRecordError(f"{what} has no {name}", MISSING_VALUE)
            return kind(**found)

        return read

    def _other(self, hint: Any) -> Reading:
        """What msgspec reads: unions, tuples, types of the user's own."""

        def read(value: Any, what: str) -> Any:
            plain = self._any(value, what)
            try:
                return msgspec.convert(plain, hint, strict=not self._takes_texts)
            except (msgspec.ValidationError, RecursionError):
                raise _unfit(what, value, f"of the type {_cut(type_text(hint), 200)}") from None

        return read


def defaults_of(kind: Any) -> set[str]:
    """The names of the fields of a record type that have a default."""
    parameters = inspect.signature(kind).parameters
    return {name for name, parameter in parameters.items() if parameter.default is not parameter.empty}


def _is_minus_zero(number: Decimal) -> bool:
    """Whether a number was written as -0, which is a whole one."""
    return number.is_zero() and number.is_signed() and number.as_tuple().exponent == 0


def _is_plain_record(kind: Any) -> bool:
    """Whether a document's names are the fields' own, and the constructor takes them all."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        return (
            not config.tag
            and not config.array_like
            and kind.__struct_fields__ == kind.__struct_encode_fields__
        )
    return not dataclasses.is_dataclass(kind) or all(field.init for field in dataclasses.fields(kind))


def _unfit(what: str, value: Any, wanted: str) -> NoRecordError:
    if value is None:
        return NoRecordError(
            f"{what} is null, and must be {wanted}: a field may be null if its type says | None",
            MISSING_VALUE,
        )
    return NoRecordError(f"{what} is {shown_value(value)}, and must be {wanted}", BAD_VALUE)


def shown_value(value: Any) -> str:
    """A value of JSON as it may stand in a sentence."""
    if isinstance(value, str):
        return f"the text {shortened(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return "null" if value is None else _cut(str(value))


def _cut(text: str, chars_max: int = 60) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."
