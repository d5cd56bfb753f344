"""The traffic flow on a running simulation: sources that follow the files to which it appends.

First on a record's path in a live run. A position is a byte in the file, so that a restart goes on at the
right record. Event times are the clock's. While a file does not grow, the watermark follows the clock, so
that a street where nothing passes holds up nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain import Source
from geartrain.source import Batch, Reject, SourceError, Split
from geartrain_examples.traffic.flow import traffic
from geartrain_examples.traffic.records import Pass, Reading

T = TypeVar("T", Pass, Reading)

READ_BYTES = 1 << 18


class Followed(Source[T]):
    """Lines `[event time in microseconds, record]` of JSON at the end of a growing file.

    select: the streets that this device takes; delay_ms: how long after its event time a record may come.
    """

    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    idle_after_ms: ClassVar[int] = 5_000
    since_1970 = True

    path: str = ""
    select: list[str] = field(default_factory=list)
    delay_ms: int = 0

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError`."""
        if not self.path:
            raise SourceError(f'source {step} has no file: set path = "FILE" under [sources.{step}]')
        return [_FollowedSplit[T](device, self, out)]


class _FollowedSplit(Generic[T]):
    """The streets of one device in one file."""

    live_clock = True

    def __init__(self, name: str, source: Followed[T], out: type[T]) -> None:
        self.name, self.out_of_orderness_us = name, source.delay_ms * 1_000
        self._path, self._streets = Path(source.path), frozenset(source.select)
        kind: Any = tuple[int, out]  # type: ignore[valid-type]
        self._decoder = msgspec.json.Decoder[tuple[int, T]](kind)

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` whole lines from the byte `position` on; none where the file is not there yet."""
        values: list[T] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        at = position
        for line in self._lines(position):
            if len(values) + len(rejects) == limit:
                break
            try:
                time_us, value = self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                rejects.append(Reject(at, f"{self._path.name}, byte {at}: {error}", line))
            else:
                if not self._streets or value.edge in self._streets:
                    values.append(value)
                    times.append(time_us)
                    numbers.append(at)
            at += len(line)
        return Batch(values, times, numbers, at, rejects)

    def _lines(self, position: int) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(position)
                lines = file.read(READ_BYTES).splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SourceError(f"file {self._path} cannot be read: {error.strerror}") from None
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]

    async def close(self) -> None:
        """Nothing stays open."""


class FollowedPasses(Followed[Pass]):
    """Passes, written as they happen."""


class FollowedReadings(Followed[Reading]):
    """Readings, written when their minute is over."""

    delay_ms: int = 65_000


flow = traffic(FollowedPasses(), FollowedReadings())
