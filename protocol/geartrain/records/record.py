"""`Record`: the base class of a user's typed records.

The first thing a user writes. Frozen and ordered by nothing but its place in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True)
class Record(msgspec.Struct, frozen=True, gc=False):
    """A typed record: subclass it and annotate the fields. It cannot be changed once it is made.

    A field may be bool, int (64 bits), float, str, bytes, datetime, `Annotated[Decimal, Digits(12, 2)]`, an
    Enum, a list, dict, tuple or another record. `Any` is one untyped column. Each of them may be `| None`.
    Lists, dicts and records may lie within one another up to 100 levels; a deeper value is a dead letter.

    upgrade: by each former type of these records, a function that makes a later one of such a record. For an
    app that is updated while it runs: devices that have not gone over send the former type until they have.

    >>> class Quote(Record):
    ...     symbol: str
    ...     price: float
    >>> Quote("GT", 3.5).price
    3.5
    """

    upgrade: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {}


class State(msgspec.Struct):
    """The typed state of one key: subclass it, and give each field a default. It may be changed in place.

    The runtime saves it as msgpack after each batch that changed it.

    >>> class Seen(State):
    ...     count: int = 0
    >>> Seen().count
    0
    """
