"""Why something is as it is, as data: a code that programs compare, and the details that belong to it.

Made where something happens, stored and sent as it is, and put into words where a person reads it: each area
has one function that knows its codes. Guarantees: no program has to read a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """Why something is as it is.

    code: what programs compare, words in small letters with `_` between, empty for no reason; details: what
    the sentence names, by name, each value such that JSON can hold it.
    """

    code: str = ""
    details: Mapping[str, Any] = {}

    def __bool__(self) -> bool:
        return self.code != ""

    def __getitem__(self, name: str) -> Any:
        return self.details[name]

    def __hash__(self) -> int:
        return hash(self.code)


NO_REASON = Reason()


def make_reason(code: str, /, **details: Any) -> Reason:
    """A reason with these details.

    Args:
        code: one of the area's codes.
        details: values such that JSON can hold them.
    """
    return Reason(code, details)


def encode_reason(reason: Reason) -> str:
    """A reason as JSON, equal for equal reasons; empty where there is none."""
    return msgspec.json.encode(reason, order="sorted").decode() if reason else ""


def decode_reason(text: str) -> Reason:
    """The reason that `encode_reason` has written.

    Raises:
        ValueError: the text is no reason.
    """
    if not text:
        return NO_REASON
    try:
        return msgspec.json.decode(text, type=Reason)
    except msgspec.DecodeError as error:
        raise ValueError(f"no reason: {text[:80]!r}") from error
