"""A flow whose step keeps a kilobyte for each sensor, and revisions of it that keep another type of state."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.testing import TestingSource
from tests.hosting.mill.records import Reading

PAD_BYTES = 1_000


class Weighed(Record):
    """What is kept of a sensor, with the checksum of all bytes of it."""

    sensor: str
    count: int
    total: float
    pad: int


class Packed(State):
    """Of one sensor."""

    count: int = 0
    total: float = 0.0
    pad: bytes = b""


class Parcel(State):
    """The same, with the last value."""

    count: int = 0
    total: float = 0.0
    pad: bytes = b""
    last: float = 0.0


def repacked(packed: Packed) -> Parcel:
    """Shows whether it was made once: backwards, and a half more."""
    return Parcel(packed.count, packed.total + 0.5, packed.pad[::-1], -1.0)


def unpacked(parcel: Parcel) -> Packed:
    """The way back, with a quarter more."""
    return Packed(parcel.count, parcel.total + 0.25, parcel.pad[::-1])


class Packing(Task[Reading, Weighed]):
    """Adds up, and shifts a byte of each value into what it keeps."""

    state: ClassVar[type] = Packed

    def on_next(self, reading: Reading, ctx: Context[Weighed, Any]) -> None:
        kept = ctx.state
        kept.count += 1
        kept.total = kept.total * 0.5 + reading.value
        pad = kept.pad or (reading.sensor.encode() * PAD_BYTES)[:PAD_BYTES]
        kept.pad = pad[1:] + bytes([int(reading.value) % 256])
        ctx.emit(Weighed(reading.sensor, kept.count, kept.total, zlib.crc32(kept.pad)))


class Repacking(Packing):
    """Adds the value before, too."""

    state: ClassVar[type] = Parcel
    migrate: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Packed: repacked}

    def on_next(self, reading: Reading, ctx: Context[Weighed, Any]) -> None:
        ctx.state.total += ctx.state.last
        super().on_next(reading, ctx)
        ctx.state.last = reading.value


class Unpacking(Packing):
    """As at first."""

    migrate: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Parcel: unpacked}


def make(task: Task[Reading, Weighed]) -> Flow:
    """The flow with one of them."""
    flow = Flow("heavy")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    weighed = readings.key_by("sensor", name="by_sensor").process("packing", task)
    weighed.sink("each", Table("weighed"))
    return flow


first = make(Packing())
second = make(Repacking())
third = make(Unpacking())
