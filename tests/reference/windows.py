"""The reference's windows: all records of a key are at hand, so a window is the list of those within."""

from __future__ import annotations

from typing import Any

from geartrain.event_time import END_OF_TIME, START_OF_TIME

_EVER = (START_OF_TIME, END_OF_TIME)


def windows_of(window: Any, time: int) -> list[tuple[int, int]]:
    """All (start, end) that `time` lies in, earliest first, of a window without sessions."""
    kind = type(window).__name__
    if kind == "Global":
        return [_EVER]
    every = window.every_us if kind == "Sliding" else window.size_us
    found = []
    start = (time - window.offset_us) // every * every + window.offset_us
    while start + window.size_us > time:
        found.append((start, start + window.size_us))
        start -= every
    return found[::-1]
