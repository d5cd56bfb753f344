"""A simulated sensor: records made by a function of a seeded generator and the record's number.

For trying a flow without a device, for demos and for load. Guarantees: a record is a pure function of (seed,
split, number), so that the source can be read again from any position and a restart goes on exactly.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from geartrain.declarations.options import Count
from geartrain.errors import USER_ERRORS, SourceError
from geartrain.graph.conform import describe
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, parse_time
from geartrain.source import Batch, Reject, Source, Split
from geartrain_devices.pace import speed_of

T = TypeVar("T")


class SimulatedSensor(Source[T]):
    """Records of type `T` that a function makes, one every `period_ms`: subclass it and define `make`.

    Args:
        seed: another one gives other records.
        records: how many there are, 0 for without end.
        period_ms: event time between two records, milliseconds.
        start: event time of the first, ISO 8601.
        speed: event seconds for each second of the clock, or `"max"`.

    >>> from geartrain import Record
    >>> class Reading(Record):
    ...     celsius: float
    >>> class Thermometer(SimulatedSensor[Reading]):
    ...     def make(self, random, number, device):
    ...         return Reading(round(20 + random.gauss(0, 1), 1))
    """

    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    seed: int = 1
    records: Count = 0
    period_ms: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 1_000
    start: str = "2026-01-01T00:00:00Z"
    speed: str | float = "max"

    def make(self, random: random.Random, number: int, device: str) -> T:
        """Make one record.

        Args:
            random: seeded for this very record, so that every run makes the same.
            number: the record's number, from 0.
            device: the device's name.

        Returns:
            The record.

        Raises:
            Exception: whatever it raises makes a dead letter of the record.
        """
        raise TypeError(f"{type(self).__name__} must define make(random, number, device)")

    @property
    def since_1970(self) -> bool:
        """Whether it starts in 1970 or later."""
        try:
            return parse_time(self.start) >= 0
        except ValueError:
            return False  # `open` says what is wrong with it

    def monotonic_s(self) -> float:
        """The seconds that `speed` is measured by; a test may have its own."""
        return time.monotonic()

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if type(self).make is SimulatedSensor.make:
            raise SourceError(
                f"source {step}: {type(self).__name__} must define make(random, number, device)"
            )
        try:
            start_us = parse_time(self.start)
        except ValueError as error:
            raise SourceError(f"source {step}: start: {error}") from None
        if not EARLIEST_TIME <= start_us < END_OF_TIME:
            raise SourceError(f"source {step}: start = {self.start!r} is not in the years 100 to 2199")
        if self.period_ms < 1 or self.records < 0:
            raise SourceError(f"source {step}: period_ms must be 1 or more and records 0 or more")
        speed = speed_of(step, self.speed)
        return [_SimulatedSplit(self, device, step, start_us, speed, self.make)]


class _SimulatedSplit:
    """The records of one device."""

    out_of_orderness_us = 0

    def __init__(
        self,
        source: SimulatedSensor[Any],
        device: str,
        step: str,
        start_us: int,
        speed: float,
        make: Callable[[random.Random, int, str], Any],
    ) -> None:
        self.name = device
        self._source, self._step, self._make = source, step, make
        self._start_us, self._speed = start_us, speed
        self._began: tuple[int, float] | None = None

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` records from number `position` on that are due."""
        end = min(position + limit, self._due(position))
        if self._source.records:
            end = min(end, self._source.records)
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        for number in range(position, end):
            time_us = self._start_us + number * self._source.period_ms * 1_000
            seed = f"{self._source.seed}/{self.name}/{self._step}/{number}"
            chance = random.Random(seed)  # noqa: S311 - a simulation
            try:
                values.append(self._make(chance, number, self.name))
                times.append(time_us)
                numbers.append(number)
            except USER_ERRORS as error:  # the user's own make
                rejects.append(Reject(number, describe(error), str(number).encode(), time_us))
        end = max(position, end)
        ended = bool(self._source.records) and end >= self._source.records
        return Batch(values, times, numbers, end, rejects, ended=ended)

    def _due(self, position: int) -> int:
        """The number of the first record that is not due yet."""
        if self._speed == math.inf:
            return 2**62
        now_s = self._source.monotonic_s()
        if self._began is None:
            self._began = (position, now_s)
        first, began_s = self._began
        return first + 1 + int((now_s - began_s) * self._speed * 1_000 / self._source.period_ms)

    async def close(self) -> None:
        """Nothing to release."""
