"""What msgspec says of data that are not of a type, as a place and a code: the one reader of its sentences.

msgspec names the field of a mistake in its sentence alone. Where data of a file, a body or a bundle are
checked. Guarantees: what msgspec says otherwise, as a later version may, is told whole under `other`.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from geartrain.errors.reason import Reason, make_reason

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


class ConversionCode(StrEnum):
    """What is wrong with data: a field that nobody knows, one that is missing, or a value. `field` names the
    field, and `text` says what of the value, in msgspec's words with a small letter first.
    """

    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    OTHER = "other"


def read_conversion(error: msgspec.ValidationError) -> tuple[str, Reason]:
    """Where data are wrong, such as `commit.records_max`, empty for the whole, and what is wrong there."""
    text = str(error)
    place = _PLACE.search(text)
    text = _PLACE.sub("", text)
    if unknown := _UNKNOWN.fullmatch(text):
        reason = make_reason(ConversionCode.UNKNOWN_FIELD, field=unknown[1])
    elif missing := _MISSING.fullmatch(text):
        reason = make_reason(ConversionCode.MISSING_FIELD, field=missing[1])
    else:
        reason = make_reason(ConversionCode.OTHER, text=f"{text[:1].lower()}{text[1:]}")
    return (place[1] if place else ""), reason
