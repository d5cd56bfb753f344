"""Which whole numbers and texts can be stored: those of 64 bits, and those that are valid Unicode.

Under the checks of records and of states, which look at whole columns: many values at one call of compiled
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
"""A whole number of 64 bits, as msgspec takes it."""
_INTS = list[INT64]


def are_int64(numbers: Sequence[int]) -> bool:
    """Whether all ints are of 64 bits."""
    try:
        msgspec.convert(numbers, _INTS)  # one look at each, where `min` and `max` take two
    except msgspec.ValidationError:
        return False
    return True


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
