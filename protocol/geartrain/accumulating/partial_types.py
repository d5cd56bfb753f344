"""The types of the rows that partial aggregates travel in: made from what they hold, found again by name.

A row's type depends on the aggregates of its step. Where a flow is handed to another process of the cloud, a
class goes by its module and name. So the name says all its fields, and this module makes the class of that
name when it is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from geartrain.records.record import Record

_PREFIX = "partial:"
_KINDS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "bytes": bytes}
_KINDS |= {f"{name}?": kind | None for name, kind in _KINDS.items()}


def row_type(name: str, fields: Sequence[tuple[str, str]]) -> Any:
    """The record type `name` of (name, `str`, `int`, `bool` or `bytes`, with `?` where it may be None)."""
    return _made(f"{_PREFIX}{name}:" + ",".join(f"{field}={kind}" for field, kind in fields))


@lru_cache(maxsize=256)
def _made(qualified: str) -> Any:
    _, name, listed = qualified.split(":")
    pairs = (field.split("=") for field in listed.split(","))
    fields = [(field, _KINDS[kind]) for field, kind in pairs]
    made = msgspec.defstruct(name, fields, bases=(Record,), module=__name__, frozen=True)
    made.__qualname__ = qualified
    return made


def __getattr__(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)
