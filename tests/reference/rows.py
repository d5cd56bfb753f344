"""Rows of the reference interpreter, what it answers, and when two values are equal to the last bit.

A row is a record with its place in canonical order and, in a keyed stream, its key. Nothing here is shared
with the runtime but the record types and the encoding of keys, whose order is part of the model.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import typing
from collections import Counter
from collections.abc import Hashable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec

from geartrain import Digits
from geartrain.records.keys import encode_key

Letter = tuple[str, int, str, int, bytes]
"""What identifies a dead letter: step, event time, and the origin's name, number and path."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A record with its place in canonical order; `key` as a `key_by` above it gave it."""

    time: int
    name: str
    number: int
    path: bytes
    value: Any
    key: Any = None

    @property
    def order(self) -> tuple[int, str, int, bytes]:
        return self.time, self.name, self.number, self.path

    def child(self, index: int, value: Any) -> Row:
        """An output of a step that may make several of one record; not keyed."""
        return Row(self.time, self.name, self.number, self.path + number(index), value)

    def with_value(self, value: Any) -> Row:
        """The output of a step that makes one of one record; not keyed."""
        return Row(self.time, self.name, self.number, self.path, value)


@dataclasses.dataclass
class Answer:
    """Rows by sink id, in canonical order; dead letters and late records, each as often as it occurs."""

    sinks: dict[str, list[Row]]
    dead: Counter[Letter]
    late: Counter[Letter]

    def refuse(self, step: str, row: Row) -> None:
        """Count a dead letter of `step` at the place of `row`."""
        self.dead[step, *row.order] += 1

    def sort(self) -> Answer:
        """Itself, once what was added to `sinks` stands in canonical order."""
        self.sinks = {sink: in_order(rows) for sink, rows in self.sinks.items()}
        return self


def number(index: int) -> bytes:
    """A child's index as bytes whose order is that of the indexes: SQLite4's prefix scheme."""
    if index <= 247:
        return bytes([index])
    digits = index.to_bytes(8, "big").lstrip(b"\0")
    return bytes([247 + len(digits)]) + digits


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Canonical order."""
    return sorted(rows, key=lambda row: row.order)


def by_key(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each key, in canonical order, by encoded key."""
    groups: dict[bytes, list[Row]] = {}
    for row in in_order(rows):
        groups.setdefault(encode_key(row.key), []).append(row)
    return [groups[key] for key in sorted(groups)]


def conform(step: str, out: Any, rows: Iterable[Row], answer: Answer) -> list[Row]:
    """The rows whose values fit the type `out`, in its form; the others are dead letters of `step`."""
    kept = []
    for row in rows:
        try:
            kept.append(dataclasses.replace(row, value=normal(out, row.value)))
        except (ValueError, OverflowError):
            answer.refuse(step, row)
    return kept


@lru_cache(maxsize=256)
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def normal(kind: Any, value: Any, int_max: int = 2**63 - 1) -> Any:
    """`value` as the declared type has it: an int where a float is due becomes one, anything else must fit.

    A state may hold what msgpack can: unsigned 64-bit integers too, and lists. Raises `ValueError`.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if type(value) is not kind:
            raise ValueError("another record type")
        declared: Any = kind
        hints = _hints(declared)
        return kind(*[normal(hints[n], getattr(value, n), int_max) for n in kind.__struct_fields__])
    if typing.get_origin(kind) is list:
        if not isinstance(value, list):
            raise ValueError("no list")
        return [normal(typing.get_args(kind)[0], part, int_max) for part in value]
    options = typing.get_args(kind)
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ValueError("no dict")
        return {normal(options[0], k, int_max): normal(options[1], v, int_max) for k, v in value.items()}
    if typing.get_origin(kind) is typing.Annotated:
        return _decimal(options[1], value)
    if options:
        (kind,) = [o for o in options if o is not type(None)]
        return None if value is None else normal(kind, value, int_max)
    return _scalar(kind, value, int_max)


def _scalar(kind: Any, value: Any, int_max: int) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError("another type")
    if kind is int and not -(2**63) <= value <= int_max:
        raise ValueError("does not fit")
    if kind is str:
        value.encode()
    if kind is datetime and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _decimal(digits: Digits, value: Any) -> Decimal:
    """With exactly so many digits behind the point, and one zero; raises `ValueError`."""
    if type(value) not in (int, Decimal) or not Decimal(value).is_finite():
        raise ValueError("no number of so many digits")
    unscaled = Fraction(value) * 10**digits.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**digits.precision:
        raise ValueError("more digits")
    return Decimal(int(unscaled)).scaleb(-digits.scale)


_PLAIN = frozenset({bool, int, str, bytes, type(None)})
"""Types whose values are the same when they are equal."""


def same_bits(left: Any, right: Any) -> bool:
    """Equal to the last bit: NaN equals NaN, 0.0 differs from -0.0, 1 differs from 1.0."""
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in _PLAIN:
        return bool(left == right)
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, msgspec.Struct):
        return all(map(same_bits, msgspec.structs.astuple(left), msgspec.structs.astuple(right)))
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same_bits, left, right))
    if isinstance(left, datetime):
        return bool(left == right and left.utcoffset() == right.utcoffset())
    return bool(left == right)
