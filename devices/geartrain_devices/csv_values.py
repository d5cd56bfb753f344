"""Texts of a CSV file as values of a record's fields.

Under the CSV replay. Guarantees: only plain forms are taken (no `1_000`, no hexadecimal, no digits of other
scripts), so that a file means the same to every program that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from geartrain.records.event_time import parse_time, to_datetime
from geartrain.schema import Field, FieldType, Logical

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
_BOOLS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def parse_field(field: Field, logical: Logical | None, text: str) -> Any:
    """The value of one field of a row; raises `ValueError` with a sentence that does not name the column.

    A field of a logical type is written as a decimal number, a member's name, or JSON.
    """
    if text == "" and field.optional:
        return None
    return logical.parse(text) if logical is not None else _PARSERS[field.type](text)


def _parse_float(text: str) -> float:
    if _FLOAT.fullmatch(text.strip()):
        return float(text)
    raise ValueError(f"{shortened(text)} is not a number")


def _parse_int(text: str) -> int:
    plain = text.strip()
    if _INT.fullmatch(plain) and len(plain) <= 20 and -(2**63) <= int(plain) < 2**63:
        return int(plain)
    raise ValueError(f"{shortened(text)} is not an integer of 64 bits")


def _parse_bool(text: str) -> bool:
    found = _BOOLS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{shortened(text)} is not true or false")
    return found


@lru_cache(maxsize=4_096)  # days repeat
def parse_moment(text: str) -> int:
    """An ISO 8601 date or time as microseconds since 1970 UTC; raises `ValueError` with a sentence."""
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{shortened(text)} is not an ISO 8601 date or time, such as 2008-10-10 or 2008-10-10T09:30:00Z"
        ) from None


_PARSERS: dict[FieldType, Callable[[str], Any]] = {
    FieldType.BOOL: _parse_bool,
    FieldType.INT64: _parse_int,
    FieldType.FLOAT64: _parse_float,
    FieldType.STR: str,
    FieldType.BYTES: str.encode,
    FieldType.DATETIME: lambda text: to_datetime(parse_moment(text)),
}


def shortened(text: str) -> str:
    """A text as it may stand in a sentence: quoted, escaped and not long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
