"""Which whole numbers and texts can be stored: those of 64 bits, and those that are valid Unicode.

Under the checks of records and of states, which look at whole columns: many values at one call of compiled
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
"""A whole number of 64 bits, as msgspec takes it."""
_NUMBERS: dict[type, Any] = {int: list[INT64], float: list[float]}


def as_numbers(values: Sequence[object], kind: type) -> list[Any] | None:
    """The values as a column of `kind`, int or float, in normal form. An int where a float is wanted is made
    one, and a member of an IntEnum the int that it is. None where one is no such number (a bool is none), or
    does not fit 64 bits.
    """
    try:
        found: list[Any] = msgspec.convert(values, _NUMBERS[kind])
    except msgspec.ValidationError:
        return None
    return found


def are_int64(numbers: Sequence[int]) -> bool:
    """Whether all ints are of 64 bits."""
    return as_numbers(numbers, int) is not None  # one look at each, where `min` and `max` take two


def are_unicode(texts: Sequence[str]) -> bool:
    """Whether all texts have an encoding: a lone surrogate has none."""
    together = "".join(texts)
    return together.isascii() or is_unicode(together)


def is_unicode(text: str) -> bool:
    """Whether a text has an encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
