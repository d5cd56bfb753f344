"""The types of the rows that partial aggregates travel in: made from what they hold, found again by name.

A row's type depends on the aggregates of its step. Where a flow is handed to another process of the cloud, a
class goes by its module and name, so the name says all its fields, and this module makes the class of that
name when it is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from geartrain.record import Record

_PREFIX = "Partial:"
_KINDS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "bytes": bytes}
_KINDS |= {f"{name}?": kind | None for name, kind in _KINDS.items()}


def row_type(fields: Sequence[tuple[str, str]]) -> Any:
    """The record type `Partial` of (name, `str`, `int`, `bool` or `bytes`, with `?` where it may be None)."""
    return _made(_PREFIX + ",".join(f"{name}={kind}" for name, kind in fields))


@lru_cache(maxsize=256)
def _made(name: str) -> Any:
    pairs = (field.split("=") for field in name[len(_PREFIX) :].split(","))
    fields = [(field, _KINDS[kind]) for field, kind in pairs]
    made = msgspec.defstruct("Partial", fields, bases=(Record,), module=__name__, frozen=True)
    made.__qualname__ = name
    return made


def __getattr__(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)
