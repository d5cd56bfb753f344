"""Sources and their splits: where records are born, with their event times and positions.

First on a record's path. A `Source` is declared in the flow; on a device the agent opens it, which gives the
splits that this device holds. Guarantees asked of an implementer: a replayable split gives the same rows
for the
same positions, always; `read` never blocks the loop for long and never returns more than `limit` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from geartrain.declarations.options import Options
from geartrain.errors import SourceError

__all__ = ["Batch", "LiveSplit", "Reject", "Source", "SourceError", "Split"]

T = TypeVar("T")


class Reject(msgspec.Struct, frozen=True):
    """A row that is no record: its number in the split, reason (one sentence: file, line, what) and raw
    bytes.
    """

    number: int
    reason: str
    raw: bytes
    event_time: int | None = None


class Batch(msgspec.Struct, frozen=True):
    """What one read of a split gave.

    values, times (microseconds), numbers: one each a record, in reading order; rejects: rows that are dead
    letters; position: where to read on after all of these; ended: a bounded split has nothing more, ever.
    """

    values: Sequence[Any]
    times: Sequence[int]
    numbers: Sequence[int]
    position: int
    rejects: Sequence[Reject] = ()
    ended: bool = False


class Split(Protocol):
    """One ordered part of a source, on one device."""

    @property
    def name(self) -> str:
        """Unique in the fleet, and the same in every run: it is part of each record's origin."""
        ...

    @property
    def out_of_orderness_us(self) -> int:
        """Bound: how far a record's event time may lie below the highest before it and not be late."""
        ...

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` rows from `position` on; none where nothing is there yet. Raises `SourceError`."""
        ...

    async def close(self) -> None:
        """Release what `open` took."""
        ...


class LiveSplit(Split, Protocol):
    """A split of a source that goes on by itself. live_clock: its event times are the device's own time, so
    that its watermark follows the device's clock while nothing comes, and what is of the future is refused.
    """

    @property
    def live_clock(self) -> bool:
        """Whether events carry the device's time."""
        ...


class Source(Options, Generic[T]):
    """A declared source of records of type `T`; annotated attributes are its options, as for `Task`.

    bounded: it ends by itself; replayable: a split can be read again from any position; in_order: every split
    yields event times that never decrease, so that its records are in canonical order; pausable: nothing is
    lost while nobody reads it, which is not so with a sensor; idle_after_ms: a live split is idle after so
    long without a record (see `LiveSplit`).
    """

    bounded: ClassVar[bool] = False
    replayable: ClassVar[bool] = False
    in_order: ClassVar[bool] = False
    pausable: ClassVar[bool] = True
    idle_after_ms: ClassVar[int] = 1_000

    @property
    def keeps_order(self) -> bool:
        """Whether, as its options stand, every split yields event times that never decrease."""
        return self.in_order

    @property
    def since_1970(self) -> bool:
        """Whether, as its options stand, no record has an event time before 1970: one that has is a dead
        letter at its birth, and moves no watermark. Subclasses say `since_1970 = True`, or have an option.
        """
        return False

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The splits that this device holds. Raises `SourceError` (one sentence: file or option, what to
        do).
        """
        raise TypeError(f"{type(self).__name__} must define open(device, step, out)")
