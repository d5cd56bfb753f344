"""The open windows of a key: what a windowed step keeps, and which event times windows can be told of.

Stands under the windowed steps, which differ in how they take records and in what the windows hold.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.windowing.contents import without
from geartrain.windowing.windows import TIME_US_MAX

A = TypeVar("A")

TOO_FAR = "its event time is more than 73,000 years from 1970, where no window can be told"


class OpenWindow(msgspec.Struct, Generic[A], array_like=True):
    """A window [start, end), microseconds, that has records.

    held: what the step keeps of them; revision: the number of its next result; count: records since the last
    early one; boundary: when the next early one is due, None where none is.
    """

    start: int
    end: int
    held: A
    revision: int = 0
    count: int = 0
    boundary: int | None = None

    def fires_at(self) -> int:
        """The watermark that ends it."""
        return min(self.end, END_OF_TIME)

    def due(self) -> int:
        """The watermark at which its next result comes."""
        fires = self.fires_at()
        return fires if self.boundary is None else min(self.boundary, fires)


class OpenWindows(msgspec.Struct, Generic[A], array_like=True):
    """The open windows of one key by their start."""

    windows: dict[int, OpenWindow[A]] = {}


@lru_cache(maxsize=256)
def windows_type(kind: Any) -> Any:
    """The state type of a key whose windows hold what is of the type `kind`."""
    return OpenWindows[kind]


def in_reach(services: Services, batch: Batch) -> Batch:
    """The records whose windows have times of 64 bits; the others are dead letters."""
    times = batch.times
    if not times or (min(times) >= -TIME_US_MAX and max(times) <= TIME_US_MAX):
        return batch
    far = {row: TOO_FAR for row, time in enumerate(times) if not -TIME_US_MAX <= time <= TIME_US_MAX}
    return batch.take(without(services, batch, far))
