"""Parsing of untrusted protobuf bytes: the one door through which they enter.

Guarantees: size is checked before anything is parsed, and whatever is wrong with the bytes is a `WireError`.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from geartrain.errors import WireError

_M = TypeVar("_M", bound=Message)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def check_size(data: bytes, what: str, bytes_max: int) -> None:
    """Raise `WireError` when `data`, which is called `what`, exceeds a cap."""
    if len(data) > bytes_max:
        raise WireError(f"{what} has {len(data)} bytes; {bytes_max} are the most")


def parse(kind: type[_M], data: bytes, what: str, bytes_max: int) -> _M:
    """Parse `data` as a `kind`; `what` names it in the `WireError` that anything else raises."""
    check_size(data, what, bytes_max)
    try:
        return kind.FromString(data)
    # The pure Python protobuf raises more kinds than the C one does.
    except (DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"{what} cannot be parsed: {error}") from None
