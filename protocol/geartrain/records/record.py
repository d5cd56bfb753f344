"""`Record`: the base class of a user's typed records.

The first thing a user writes. Frozen and ordered by nothing but its place in the stream.
"""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True)
class Record(msgspec.Struct, frozen=True, gc=False):
    """A typed, immutable record: annotate its fields with bool, int, float, str, bytes, datetime,
    Annotated[Decimal, Digits(12, 2)], an Enum, a list, dict, tuple or another record, Any (one untyped
    column), or one of them | None.

    >>> class Quote(Record):
    ...     symbol: str
    ...     price: float
    >>> Quote("GT", 3.5).price
    3.5
    """


class State(msgspec.Struct):
    """A typed, mutable state of one key: fields with defaults, saved by the runtime as msgpack.

    >>> class Seen(State):
    ...     count: int = 0
    >>> Seen().count
    0
    """
