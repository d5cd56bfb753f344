"""Sources and their splits: where records are born, with their event times and positions.

First on a record's path. A `Source` is declared in the flow; on a device the agent opens it, which gives the
splits that this device holds. Guarantees asked of an implementer: a replayable split gives the same rows for
the same positions, always. `read` never blocks the loop for long and never returns more than `limit` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from geartrain.declarations.options import Options
from geartrain.errors import SourceError

__all__ = ["Batch", "LiveSplit", "Reject", "Source", "SourceError", "Split"]

T = TypeVar("T")


class Reject(msgspec.Struct, frozen=True):
    """A row that is no record. It becomes a dead letter.

    Args:
        number: its number in the split.
        reason: one sentence: which file and line, and what is wrong.
        raw: the row's bytes.
        event_time: its event time, microseconds since 1970 UTC, where it is known.
        code: what kind of fault it is, in lower case with underscores, such as `bad_time`. Programs compare
            codes; the reason is for people, and its words may change.
    """

    number: int
    reason: str
    raw: bytes
    event_time: int | None = None
    code: str = "not_a_record"


class Batch(msgspec.Struct, frozen=True):
    """What one read of a split gave.

    Args:
        values: the records, in reading order.
        times: their event times, microseconds since 1970 UTC.
        numbers: their numbers in the split, ascending, the same in every run of a replayable source.
        position: where to read on after all of these.
        rejects: rows that are no records.
        ended: whether a bounded split has nothing more, ever.
        counts: what was passed over without a record or a reject, and what else is to be counted, by name,
            such as `mqtt_retained_passed_over`. The agent adds the counts to its counters.
        notes: what the split wants to find again after a restart, by key; None forgets a key. Notes are made
            durable together with the position. Only a `NotingSplit` is given its notes back.
    """

    values: Sequence[Any]
    times: Sequence[int]
    numbers: Sequence[int]
    position: int
    rejects: Sequence[Reject] = ()
    ended: bool = False
    counts: Mapping[str, int] = {}
    notes: Mapping[bytes, bytes | None] = {}


class Split(Protocol):
    """One ordered part of a source, on one device: a file, a sensor."""

    @property
    def name(self) -> str:
        """Unique among the splits of its source in the fleet, and the same in every run. It is part of each
        record's origin, behind the id of the source's step, which it need not name.
        """
        ...

    @property
    def out_of_orderness_us(self) -> int:
        """How far an event time may lie below the highest before it and not be late, microseconds."""
        ...

    async def read(self, position: int, limit: int) -> Batch:
        """Read on. It must not block the loop for long.

        Args:
            position: where to begin: 0, or the `position` of the read before.
            limit: how many rows at most, rejects included.

        Returns:
            The rows that are there; none, at the same position, where nothing is there yet.

        Raises:
            SourceError: when the split cannot be read at all; one sentence that says what to do.
        """
        ...

    async def close(self) -> None:
        """Release what `open` took."""
        ...


class LiveSplit(Split, Protocol):
    """A split of a source that goes on by itself. It may say `live_clock`."""

    @property
    def live_clock(self) -> bool:
        """Whether its event times are the device's own time. Its watermark then follows the device's clock
        while nothing comes, and a record of the future is refused.
        """
        ...


class AskingSplit(LiveSplit, Protocol):
    """A live split that asks for its records, and so may not know of some that are there."""

    @property
    def is_behind(self) -> bool:
        """Whether, as of the last read, there may be records that it has not given. Its watermark then does
        not follow the device's clock.
        """
        ...


class SharedSplit(Split, Protocol):
    """A split of an exclusive source, which apps of one device share."""

    def share(self, folder: Path, app: str) -> None:
        """Called before the first read, where the device has apps in several processes.

        Args:
            folder: a private folder that all of them can write to, and nobody else.
            app: the name of this one, for sentences.
        """
        ...


class ClientSplit(Split, Protocol):
    """A split that is the client of a server which tells its clients apart by an id."""

    def name_client(self, client_id: str) -> None:
        """Called before the first read.

        Args:
            client_id: at most 23 letters and digits. No other platform, device, app or step has the same, and
                it is the same after a restart, as long as the device keeps its spool.
        """
        ...


class NotingSplit(Split, Protocol):
    """A split that finds its notes again: what its batches said in `notes`."""

    def take_notes(self, notes: Mapping[bytes, bytes]) -> None:
        """Called before the first read, with all that is noted at the position of that read."""
        ...


class Source(Options, Generic[T]):
    """A declared source of records of type `T`: subclass it and define `open`. Annotated attributes are
    options.

    Subclasses may say of themselves: `bounded`, it ends by itself. `replayable`, a split can be read again
    from any position. `in_order`, the event times of each split never decrease. `pausable = False`, what
    nobody reads is lost, as with a sensor. `idle_after_ms`, a live split is idle after so long without a
    record. `exclusive`, the options that name what can be opened only once, such as a port: its splits are
    `SharedSplit`s then. `each_its_own`, the options in which the apps that share it may differ.
    """

    bounded: ClassVar[bool] = False
    replayable: ClassVar[bool] = False
    in_order: ClassVar[bool] = False
    pausable: ClassVar[bool] = True
    idle_after_ms: ClassVar[int] = 1_000
    exclusive: ClassVar[tuple[str, ...]] = ()
    each_its_own: ClassVar[tuple[str, ...]] = ()

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

    def check_settings(self, step: str, out: type[T]) -> None:
        """Refuse options with which no device could open the source. `gear plan` and `gear submit` ask this
        before anything is read, so that nothing of the device is looked at. An option that is missing may be
        set on the device.

        Args:
            step: the id of the source's step.
            out: the type of its records.

        Raises:
            SourceError: one sentence that names the option and says what to do.
        """

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """Open the source on a device.

        Args:
            device: the device's name.
            step: the id of the source's step.
            out: the type of its records.

        Returns:
            The splits that this device holds.

        Raises:
            SourceError: one sentence that names the file or option and says what to do.
        """
        raise TypeError(f"{type(self).__name__} must define open(device, step, out)")
