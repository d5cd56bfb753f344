"""The flows of the fault suite: numbered records, so that each one can be asked after by its number.

What the agents of the scenarios run. `numbers` holds back what lies beyond the number in its gate's file, so
that a scenario decides how far things are when it strikes. Guarantees: a record is a function of device and
number alone, except for the times of `live` and `pulses`, which are the device's own.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Sequence
from hashlib import shake_128
from pathlib import Path
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.source import Batch, Reject, Source, Split

LANES = 3
POISON_EVERY = 97
"""Every so manieth record is none: it becomes a dead letter."""
SECOND_US = 1_000_000
START_US = 1_767_225_600 * SECOND_US
"""2026-01-01."""


class Numbered(Record):
    """One record; `check` is of device and number, and proves that it came unchanged."""

    device: str
    lane: str
    number: int
    check: int
    filling: str


class Tally(Record):
    """How many records a lane has had, and what their numbers come to."""

    lane: str
    count: int
    total: int


class Pulse(Record):
    """One record of an urgent flow, and when it was made, wall clock in microseconds."""

    number: int
    made_us: int


class Sums(State):
    """Kept for each lane on the device."""

    count: int = 0
    total: int = 0


class Tallies(Task[Numbered, Tally]):
    """State on the edge: a record that came twice or was left out shows in every later tally."""

    state = Sums

    def on_next(self, record: Numbered, ctx: Context[Tally, Sums]) -> None:
        ctx.state.count += 1
        ctx.state.total += record.number
        ctx.emit(Tally(record.lane, ctx.state.count, ctx.state.total))


def check_of(device: str, number: int) -> int:
    """What `Numbered.check` holds."""
    return zlib.crc32(f"{device}/{number}".encode())


def is_poison(number: int) -> bool:
    """Whether it becomes a dead letter at birth."""
    return number % POISON_EVERY == POISON_EVERY - 1


def numbered(device: str, number: int, filling: int = 0, *, dense: bool = False) -> Numbered:
    """The record of that number; dense: with a filling that hardly gets smaller by compression."""
    filled = f"{number:x}." * (filling // 8)
    if dense:
        filled = base64.b85encode(shake_128(b"%d" % number).digest(filling * 4 // 5)).decode("ascii")
    return Numbered(device, f"{device}/{number % LANES}", number, check_of(device, number), filled)


class NumberSource(Source[Numbered]):
    """records: how many; step_ms: of event time from one to the next; per_second: at most so many by the
    wall clock, 0 for no limit; gate: a file with the number before which it stops, none for no stop; filling:
    bytes that each has beside, which compress well unless they are dense; live: times are the device's own,
    and from number `ahead_from` on those of 2099.
    """

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    records: int = 1_000
    step_ms: int = 1_000
    per_second: float = 0.0
    gate: str = ""
    filling: int = 0
    dense: bool = False
    live: bool = False
    ahead_from: int = 0
    ahead_to: int = 0

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_NumberSplit(self, device)]


AHEAD_US = 73 * 365 * 86_400 * SECOND_US


class _NumberSplit:
    out_of_orderness_us = 0

    def __init__(self, source: NumberSource, device: str) -> None:
        self.name, self.live_clock = device, source.live
        self._source, self._device = source, device
        self._began: tuple[int, float] | None = None

    async def read(self, position: int, limit: int) -> Batch:
        source = self._source
        end = min(position + limit, source.records, _gate(source.gate))
        if source.per_second:
            self._began = self._began or (position, time.monotonic())
            past_s = time.monotonic() - self._began[1]
            end = min(end, self._began[0] + 1 + int(past_s * source.per_second))
        values, times, numbers, rejects = [], [], [], []
        for number in range(position, end):
            if is_poison(number):
                rejects.append(Reject(number, "the number is poison", b"%d" % number, None))
                continue
            values.append(numbered(self._device, number, source.filling, dense=source.dense))
            times.append(self._time(number))
            numbers.append(number)
        end = max(end, position)
        return Batch(values, times, numbers, end, rejects, ended=end >= source.records)

    def _time(self, number: int) -> int:
        source = self._source
        if not source.live:
            return START_US + number * source.step_ms * 1_000
        ahead = source.ahead_from <= number < source.ahead_to
        return time.time_ns() // 1_000 + (AHEAD_US if ahead else 0)

    async def close(self) -> None:
        """Nothing to release."""


class PulseSource(Source[Pulse]):
    """records: how many, one every `every_ms` by the wall clock; gate: as in `NumberSource`."""

    bounded: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    records: int = 100
    every_ms: int = 100
    gate: str = ""

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_PulseSplit(self, device)]


class _PulseSplit:
    out_of_orderness_us = 0

    def __init__(self, source: PulseSource, name: str) -> None:
        self.name = name
        self._source = source
        self._next_s = 0.0

    async def read(self, position: int, limit: int) -> Batch:
        source, now_s = self._source, time.monotonic()
        end = min(position + 1, source.records, _gate(source.gate)) if now_s >= self._next_s else position
        end = max(end, position)
        numbers = list(range(position, end))
        if numbers:
            self._next_s = now_s + source.every_ms / 1_000
        now_us = time.time_ns() // 1_000
        values = [Pulse(number, now_us) for number in numbers]
        return Batch(values, [now_us] * len(values), numbers, end, ended=end >= source.records)

    async def close(self) -> None:
        """Nothing to release."""


def _gate(path: str) -> int:
    return int(Path(path).read_text(encoding="ascii")) if path else 1 << 60


flow = Flow("numbers")
_numbers = flow.source("numbers", NumberSource(), out=Numbered, partitioned_by="lane")
_numbers.sink("kept", Table("kept"))
_numbers.key_by("lane").process("tallies", Tallies()).sink("sums", Table("sums", key=("lane",)))

plain = Flow("plain")
"""One channel for all that is good: a record that comes alone goes in a batch that goes alone."""
plain.source("numbers", NumberSource(), out=Numbered, partitioned_by="lane").sink("kept", Table("kept"))

pulses = Flow("pulses")
pulses.source("pulses", PulseSource(), out=Pulse).sink("beats", Table("beats"))
