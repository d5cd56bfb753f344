"""Between record objects and columns, and the check that a value fits its declared type.

Used where a step makes new records, and where records enter or leave a channel. So a wrong value is a dead
letter at the same step under every cut. Guarantees: what passes `conform` survives the wire, Arrow and back
unchanged, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec

from geartrain.errors import SchemaError
from geartrain.records.event_time import from_datetime, to_datetime
from geartrain.schema.derive import derive, field_names, logicals
from geartrain.schema.fields import Field, FieldType
from geartrain.schema.logical import Logical
from geartrain.schema.storable import INT64_MAX, INT64_MIN, are_int64, are_unicode, as_numbers, is_unicode

_TURNED_MIN = 5
"""Fields of a struct from which on it is faster to turn rows into columns than to take field by field."""
_PYTHON: dict[FieldType, type] = {
    FieldType.BOOL: bool,
    FieldType.INT64: int,
    FieldType.FLOAT64: float,
    FieldType.STR: str,
    FieldType.BYTES: bytes,
    FieldType.DATETIME: datetime,
}


class RowCodec:
    """Turns records of one type into columns and back."""

    def __init__(self, kind: Any) -> None:
        """`kind`: a record or scalar type; raises `SchemaError` when it cannot be one."""
        self.kind = kind
        self.schema = derive(kind)
        self._scalar = self.schema.scalar
        names = () if self._scalar else field_names(kind)
        self._logicals = logicals(kind)
        self._has_logicals = any(self._logicals)
        self._getters: list[Callable[[Any], Any]] = [attrgetter(n) for n in names]
        self._turns = len(names) >= _TURNED_MIN and issubclass(kind, msgspec.Struct)
        self._kinds = [_PYTHON[f.type] for f in self.schema.fields]
        self._allowed = [self._types(f) for f in self.schema.fields]
        first = self.schema.fields[0]
        is_plain = self._scalar and not first.optional and not self._has_logicals
        self._number = self._kinds[0] if is_plain and self._kinds[0] in (int, float) else None

    @staticmethod
    def _types(field: Field) -> frozenset[type]:
        plain = {_PYTHON[field.type]}
        return frozenset(plain | {type(None)} if field.optional else plain)

    def to_columns(self, values: Sequence[Any]) -> list[list[Any]]:
        """One list a field, in schema order; DATETIME as int microseconds. The values must conform."""
        columns = list(map(list, self._columns(values)))
        for field, logical, column in zip(self.schema.fields, self._logicals, columns, strict=True):
            if logical is not None:
                column[:] = [None if v is None else logical.lower(v) for v in column]
            elif field.type is FieldType.DATETIME:
                column[:] = [None if v is None else from_datetime(v) for v in column]
        return columns

    def from_columns(self, columns: Sequence[list[Any]]) -> list[Any]:
        """Records of the codec's type; the reverse of `to_columns`.

        Raises `SchemaError` for a column of a logical type that `to_columns` cannot have made.
        """
        ready = [
            self._lifted(field, logical, column)
            for field, logical, column in zip(self.schema.fields, self._logicals, columns, strict=True)
        ]
        return list(ready[0]) if self._scalar else list(map(self.kind, *ready))

    @staticmethod
    def _lifted(field: Field, logical: Logical | None, column: list[Any]) -> list[Any]:
        if logical is not None:
            return [None if v is None else logical.lift(v) for v in column]
        if field.type is FieldType.DATETIME:
            return [None if v is None else to_datetime(v) for v in column]
        return column

    def conform(self, values: Sequence[Any]) -> tuple[Sequence[Any], list[tuple[int, str]]]:
        """Check that the values fit the schema.

        Returns the values, and (index, reason) for each that cannot fit, whose slot in the values is then
        meaningless. An int in a float field is made a float, a member of an IntEnum in an int field an int,
        and a naive datetime UTC.
        """
        if not values or (len(values) == 1 and self._fits_alone(values[0])):
            return values, []
        if self._number is not None and (numbers := as_numbers(values, self._number)) is not None:
            return numbers, []
        if self._fits(values):
            return values, []
        checked, wrong = [], []
        for index, value in enumerate(values):
            try:
                checked.append(self._repaired(value))
            except (TypeError, ValueError, OverflowError, SchemaError) as error:
                checked.append(value)
                wrong.append((index, str(error)))
        return checked, wrong

    def _fits_alone(self, value: Any) -> bool:
        """Whether a lone record plainly fits, found out without columns: those are for many."""
        if self._scalar:
            return _is_plain(value, self._kinds[0], self._has_logicals)
        if self._has_logicals or type(value) is not self.kind:
            return False
        for get, kind in zip(self._getters, self._kinds, strict=True):
            if not _is_plain(get(value), kind, False):
                return False
        return True

    def _fits(self, values: Sequence[Any]) -> bool:
        if self._has_logicals or (not self._scalar and not _are(values, self.kind)):
            return False
        for position, column in enumerate(self._columns(values)):
            is_plain = _are(column, self._kinds[position])
            if not (is_plain or self._allowed[position].issuperset(map(type, column))):
                return False
            if not _plain(self.schema.fields[position], column):
                return False
        return True

    def _columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """The fields of values that are of the codec's type, one after the other."""
        if self._scalar:
            return (values,)
        if self._turns and values:
            return zip(*map(msgspec.structs.astuple, values), strict=True)
        return (list(map(get, values)) for get in self._getters)

    def _repaired(self, value: Any) -> Any:
        if self._scalar:
            return _fit(self.schema.fields[0], self._logicals[0], value)
        if type(value) is not self.kind:
            raise SchemaError(f"expected a {self.schema.name}, got {short_form(value)}")
        fields = zip(self.schema.fields, self._logicals, self._getters, strict=True)
        parts = [_fit(field, logical, get(value)) for field, logical, get in fields]
        return self.kind(*parts)


def _are(values: Sequence[Any], kind: Any) -> bool:
    """Whether all values are of this very type."""
    return list(map(type, values)).count(kind) == len(values)


def _is_plain(value: Any, kind: Any, is_logical: bool) -> bool:
    """Whether a value needs no closer look; False says nothing of it."""
    if type(value) is not kind or is_logical:
        return False
    if kind is int:
        return bool(INT64_MIN <= value <= INT64_MAX)
    return kind is float or (kind is str and value.isascii()) or kind is bool


def _plain(field: Field, column: Sequence[Any]) -> bool:
    """Whether a column of the right Python types also has only storable values in their normal form."""
    if field.type is FieldType.INT64:
        numbers = [v for v in column if v is not None] if field.optional else column
        return are_int64(numbers)
    if field.type is FieldType.STR:
        texts = [v for v in column if v is not None] if field.optional else column
        return are_unicode(texts)
    if field.type is FieldType.DATETIME:
        moments = [v for v in column if v is not None] if field.optional else column
        return not [moment for moment in moments if moment.tzinfo is not UTC]
    return True


def _fit(field: Field, logical: Logical | None, value: Any) -> Any:
    """`value` in the normal form of `field`; raises with one sentence."""
    if value is None:
        if field.optional:
            return None
        raise SchemaError(f"field {field.name} is None but is not optional")
    if logical is not None:
        try:
            return logical.fit(value)
        except SchemaError as error:
            raise SchemaError(f"field {field.name} {error}") from None
    kind = _PYTHON[field.type]
    if field.type is FieldType.FLOAT64 and isinstance(value, int) and type(value) is not bool:
        return _as_float(field, value)
    if field.type is FieldType.DATETIME and isinstance(value, datetime):
        return _as_utc(field, value)
    if type(value) is not kind:
        if not isinstance(value, kind) or type(value) is bool:
            raise SchemaError(f"field {field.name} must be {kind.__name__}, got {short_form(value)}")
        value = kind(value)
    if kind is int and not INT64_MIN <= value <= INT64_MAX:
        raise SchemaError(f"field {field.name} = {short_form(value)} does not fit into 64 bits")
    if kind is str and not is_unicode(value):
        raise SchemaError(f"field {field.name} holds text that is not valid Unicode")
    return value


def _as_float(field: Field, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise SchemaError(f"field {field.name} = {short_form(value)} is beyond a float of 64 bits") from None


def _as_utc(field: Field, value: datetime) -> datetime:
    try:
        return to_datetime(from_datetime(value))
    except OverflowError:
        raise SchemaError(
            f"field {field.name} = {short_form(value)} lies outside of the years 1 to 9999 of UTC"
        ) from None


def short_form(value: Any) -> str:
    """A value as it may stand in a sentence: its `repr`, cut to 80 characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a user's own class
        is_long = isinstance(value, int)  # Python refuses to write one of more than 4,300 digits
        text = f"a {type(value).__name__} that {'is too long to write' if is_long else 'has no repr'}"
    return text if len(text) <= 80 else text[:77] + "..."
