"""Random data for the random flows: bytes that hypothesis draws and shrinks, read as the records of splits.

One draw of bytes makes all records of a split, so that data costs little; a zero byte in front means no
record, so that shrinking the bytes leaves fewer and simpler records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geartrain.records.event_time import END_OF_TIME
from geartrain.source import Reject
from tests.reference.records import Reading

RECORD_BYTES = 4

BASES = (0, 0, 0, -37, -(10**12) - 1, 10**15, END_OF_TIME - 60)
"""Where times begin: the epoch, before it, far from it, and so near the end of time that some lie beyond."""
BOUNDS = (0, 0, 3, 25, 10**6)

_STEPS = (1, 0, 0, 0, 1, 1, 2, 3, 4, 6, 9, 14, 30, 0, 2, 5)
_JUMPS = (1_000, 999_999, 10**6, 10**12)
_BACK = (1, 2, 3, 5, 8, 20, 26, 500)

_SHARED_US = 8
"""Half of all times are multiples of this beyond the base, so that records of all splits meet there."""

_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, -1, -2, -3, -4)
_HUGE_NUMBERS = (2**63 - 1, -(2**63), 2**63, 2**62, 2**53 + 1)
_FLOATS = (0.0, 1.0, 0.1, 0.2, 0.3, -0.7, 1e16, -1e16, 2.5, 99.9, 100.0, 1e-9, -3.0, 7, 1 / 3, 1e300)
_WILD_FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 1.7e308, -1.7e308, 5e-324, 1e200)
_NOTES = (None, "", "note", "ü\x00\n", None, "x" * 40, None, "\ud800")


def items(raw: bytes, keys: Sequence[str], base: int, *, in_order: bool, wild: bool) -> list[Any]:
    """The items of a split: (time, record) or `Reject`. in_order: times never decrease; wild: with NaN,
    infinities and what does not fit.
    """
    found: list[Any] = []
    top = base
    for at in range(0, len(raw) - RECORD_BYTES + 1, RECORD_BYTES):
        when, who, count, size = raw[at : at + RECORD_BYTES]
        if when == 0:
            continue
        if count == 255 and wild:
            found.append(Reject(len(found), "planted", b"raw"))
            continue
        time = top + _delta(when, in_order)
        if when % 2:
            time = base + -((base - time) // _SHARED_US) * _SHARED_US
        top = max(top, time)
        note = _NOTES[who // 8 % len(_NOTES)]
        if note == "\ud800" and not wild:
            note = None
        found.append((time, Reading(keys[who % len(keys)], _number(count, wild), _float(size, wild), note)))
    return found


def _delta(code: int, in_order: bool) -> int:
    if code >= 252:
        return _JUMPS[code - 252]
    if code >= 160 and not in_order:
        return -_BACK[code % len(_BACK)]
    return _STEPS[code % len(_STEPS)]


def _number(code: int, wild: bool) -> int:
    if wild and code >= 240:
        return _HUGE_NUMBERS[code % len(_HUGE_NUMBERS)]
    return _NUMBERS[code % len(_NUMBERS)]


def _float(code: int, wild: bool) -> float:
    if wild and code >= 200:
        return _WILD_FLOATS[code % len(_WILD_FLOATS)]
    return _FLOATS[code % len(_FLOATS)]
