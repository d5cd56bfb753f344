"""What simulated devices measure: a small flow with one channel of each kind, over a source made from a seed.

First on a simulated record's path. Guarantees: a device's rows are a function of the seed and its name alone,
however often they are read, in whatever pieces and after whatever pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from msgspec.structs import replace

from geartrain import Context, Flow, Record, Source, State, Table, Task
from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import SECOND_US
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import RowCodec
from geartrain.source import Batch as Read
from geartrain.source import Reject, Split
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import current_node
from geartrain_simulation.stores.segments import Row

SENSORS = 3
BEAT_BOUND_US = SECOND_US // 2
"""How far a live reading may lie below the highest before it and not be late."""
READ_TO = b"read to"
"""The key of a note: the position of the next row, 4 bytes."""


class Reading(Record):
    """What one sensor of a device says."""

    sensor: str
    level: int


class Total(Record):
    """All that a sensor has said so far."""

    sensor: str
    count: int
    sum: int


class Sums(State):
    """Of one sensor."""

    count: int = 0
    sum: int = 0


class Running(Task[Reading, Total]):
    """Adds up; refuses a level of 13, which leaves no trace in the sum."""

    state = Sums

    def on_next(self, reading: Reading, ctx: Context[Total, Sums]) -> None:
        """Raises `ValueError` for a level of 13, too late to be harmless if nothing were undone."""
        ctx.state.count += 1
        ctx.state.sum += reading.level
        ctx.emit(Total(reading.sensor, ctx.state.count, ctx.state.sum))
        if reading.level == 13:
            raise ValueError("an unlucky level")


class Readings(Source[Reading]):
    """A bounded source of so many rows by device, some of them bad; a read takes up to `pause_s_max`."""

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    seed: int = 0
    records: Mapping[str, int] = field(default_factory=dict)
    pause_s_max: float = 0.05

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """One split of a device that has rows."""
        return [self._split(device, step)] if device in self.records else []

    def _split(self, device: str, step: str) -> Split:
        rows = rows_of(self.seed, device, self.records[device])
        return _Recorded(device, step, rows, self.pause_s_max)


def rows_of(seed: int, device: str, records: int) -> list[tuple[int, Reading | None]]:
    """(event time, reading) of each row, None for a bad one; times stand still at times."""
    random = Random(f"{seed}/{device}/rows")
    time, rows = SECOND_US, list[tuple[int, Reading | None]]()
    for _ in range(records):
        time += random.choice((0, 1, 1_000, SECOND_US, 3_600 * SECOND_US))
        reading = Reading(f"{device}-{random.randrange(SENSORS)}", random.randrange(40))
        rows.append((time, None if random.random() < 0.05 else reading))
    return rows


def _poll(rows: list[tuple[int, Reading | None]], start: int, end: int) -> Read:
    """What a read of the rows in [start, end) gives."""
    part = list(enumerate(rows[start:end], start))
    good = [(reading, time, number) for number, (time, reading) in part if reading is not None]
    bad = [Reject(n, f"row {n} is broken", b"\xff", time) for n, (time, reading) in part if reading is None]
    values, times, numbers = map(list, zip(*good, strict=True)) if good else ([], [], [])
    return Read(values, times, numbers, start + len(part), bad, ended=start + len(part) == len(rows))


class Doors(Readings):
    """A further source of so many rows by device, none of them bad."""

    def _split(self, device: str, step: str) -> Split:
        return _Recorded(device, step, list(doors_of(self, device)), self.pause_s_max)


def doors_of(source: Doors, device: str) -> list[tuple[int, Reading]]:
    """(event time, reading) of each row of a device."""
    rows = rows_of(source.seed, device, source.records[device])
    return [(time, reading or Reading(f"{device}-0", 0)) for time, reading in rows]


class _Recorded:
    out_of_orderness_us = 0

    def __init__(
        self, device: str, step: str, rows: list[tuple[int, Reading | None]], pause_s_max: float
    ) -> None:
        self.name, self._rows, self._pause_s_max = device, rows, pause_s_max
        self._random = Random(f"{device}/{step}/pauses")

    async def read(self, position: int, limit: int) -> Read:
        """Some of the rows from `position` on, at times none."""
        await asyncio.sleep(self._random.uniform(0, self._pause_s_max))
        end = position + self._random.randint(0, min(limit, 8))
        if not current_node().comes_to_ends:
            end = max(position, min(end, len(self._rows) - 1))
        return _poll(self._rows, position, end)

    async def close(self) -> None:
        """Nothing to release."""


class NotedReadings(Readings):
    """A source whose splits note where they have read to, and miss a note that is not as their position."""

    def _split(self, device: str, step: str) -> Split:
        rows = rows_of(self.seed, device, self.records[device])
        return _Noting(device, step, rows, self.pause_s_max)


class _Noting(_Recorded):
    _noted = 0
    """Where the split has read to, by its own note."""

    def take_notes(self, notes: Mapping[bytes, bytes]) -> None:
        """What a former life noted; nothing before the first rows."""
        self._noted = int.from_bytes(notes.get(READ_TO, b""))

    async def read(self, position: int, limit: int) -> Read:
        """Some of the rows from `position` on; the note and the position are of one commit."""
        if position != self._noted:
            told = f"{self.name} reads from row {position}, and has the note of row {self._noted}"
            current_node().world.fail(ViolationError("notes with rows", told))
        found = await super().read(position, limit)
        if found.position == position:
            return found
        self._noted = found.position
        return replace(found, notes={READ_TO: self._noted.to_bytes(4)})


class Beats(Source[Reading]):
    """A live source: sensors that speak by their device's clock, and of which nothing can be read twice."""

    bounded: ClassVar[bool] = False
    replayable: ClassVar[bool] = False
    pausable: ClassVar[bool] = False
    sensors: Mapping[str, Sensor] = field(default_factory=dict)
    pause_s_max: float = 0.05

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """One split of a device that has a sensor."""
        if device not in self.sensors:
            return []
        return [_Live(device, self.sensors[device], self.pause_s_max)]


@dataclass(frozen=True, slots=True)
class Birth:
    """A reading's: true time since the world began; off_us: what its sensor said beside that; boot: the
    node's; is_known: whether somebody had set its clock. Microseconds.
    """

    true_us: int
    off_us: int
    boot: int
    is_known: bool


class Sensor:
    """A sensor in the world outside: it goes on while its device is down, and `left` readings are to come."""

    def __init__(self, seed: int, device: str, readings: int) -> None:
        self.device, self.left = device, readings
        self.random = Random(f"{seed}/{device}/sensor")
        self.births: dict[int, Birth] = {}
        """Of each reading, by its number."""

    def speak(self) -> tuple[int, Reading]:
        """How far its event time is from its device's clock, microseconds, and the reading. Most are
        a little late, some are beyond the bound, and some come from the future.
        """
        self.left -= 1
        random = self.random
        off_us = -random.randrange(2 * BEAT_BOUND_US) if random.random() < 0.3 else 0
        if random.random() < 0.03:
            off_us = 400 * SECOND_US
        return off_us, Reading(f"{self.device}-{random.randrange(SENSORS)}", random.randrange(40))


class _Live:
    out_of_orderness_us = BEAT_BOUND_US
    live_clock = True

    def __init__(self, name: str, sensor: Sensor, pause_s_max: float) -> None:
        self.name, self._sensor, self._pause_s_max = name, sensor, pause_s_max

    async def read(self, position: int, limit: int) -> Read:
        """What the sensor says now, often nothing; its number is the time, so that none comes twice."""
        sensor, node = self._sensor, current_node()
        await asyncio.sleep(sensor.random.uniform(0, self._pause_s_max))
        now_s = node.world.loop.time()
        values, times, numbers = list[Reading](), list[int](), list[int]()
        for _ in range(min(sensor.random.choice((0, 0, 1, 3)), sensor.left, limit)):
            off_us, reading = sensor.speak()
            values.append(reading)
            times.append(node.offset.wall_us(now_s) + off_us)
            position = max(position, round(now_s * 1e6)) + 1
            numbers.append(position)
            is_known = node.offset.is_known(now_s)
            sensor.births[position] = Birth(round(now_s * 1e6), off_us, node.boots, is_known=is_known)
        return Read(values, times, numbers, position)

    async def close(self) -> None:
        """Nothing to release."""


def make_graph(
    seed: int,
    records: Mapping[str, int],
    pause_s_max: float = 0.05,
    sensors: Mapping[str, Sensor] | None = None,
    others: Mapping[str, int] | None = None,
) -> Graph:
    """Readings to a table as they are, and to another as running totals by sensor; recorded ones of the
    devices in `records`, and live ones of those in `sensors`. others: rows of a further source, by device,
    which is merged with the recorded ones and notes how far it has read.
    """
    flow = Flow("fleet")
    source = Readings(seed=seed, records=records, pause_s_max=pause_s_max)
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    readings.sink("levels", Table("levels"))
    readings.key_by("sensor").process("totals", Running()).sink("sums", Table("sums"))
    if others is not None:
        further = NotedReadings(seed=seed + 1, records=others, pause_s_max=4 * pause_s_max)
        second = flow.source("others", further, out=Reading, partitioned_by="sensor")
        readings.merge("both", second).sink("both_levels", Table("both_levels"))
    if sensors:
        live = Beats(sensors=sensors, pause_s_max=pause_s_max)
        beats = flow.source("beats", live, out=Reading, partitioned_by="sensor")
        beats.sink("beat_levels", Table("beat_levels"))
        beats.key_by("sensor").process("beat_totals", Running()).sink("beat_sums", Table("beat_sums"))
    return flow.graph()


def members(plan: Plan, devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By source, the devices that have a split of it."""
    found = dict[str, tuple[str, ...]]()
    for step in plan.graph.sources():
        assert isinstance(step.operator, SourceOperator)
        source = step.operator.source
        found[step.id] = tuple(device for device in devices if source.open(device, step.id, step.out))
    return found


def expected_rows(plan: Plan, device: str) -> dict[str, list[Row]]:
    """What a device must send, by channel and in order: its edge steps run over all its rows, undisturbed."""
    fragment = Fragment(plan.graph, plan.edge)
    for step in plan.graph.sources():
        if isinstance(step.operator, SourceOperator) and isinstance(step.operator.source, Readings):
            source = step.operator.source
            for split in source.open(device, step.id, step.out):
                rows = rows_of(source.seed, device, source.records[device])
                tracker = SplitTracker(step.id, split.name, 0, None)
                for number in range(len(rows)):  # one by one, as the most patient agent would
                    batch, _, letters = tracker.observe(_poll(rows, number, number + 1))
                    for letter in letters:
                        fragment.reject(letter)
                    fragment.feed(tracker.step, batch)
    output = fragment.take()
    codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
    return {channel: _as_rows(codecs[channel], batches) for channel, batches in output.batches.items()}


def _as_rows(codec: RowCodec, batches: Sequence[Batch]) -> list[Row]:
    rows = []
    for batch in batches:
        fields = zip(*codec.to_columns(batch.values), strict=True)
        for index, values in enumerate(fields):
            origin = batch.origin(index)
            rows.append(Row(batch.times[index], origin.name, origin.number, origin.path, tuple(values)))
    return rows
