"""What simulated devices measure: a small flow with one channel of each kind, over a source made from a seed.

The first thing on a simulated record's path. Guarantees: a device's rows are a function of the seed and its
name alone, however often, in whatever pieces and after whatever pauses they are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from geartrain import Context, Flow, Record, Source, State, Table, Task
from geartrain.batch import Batch
from geartrain.event_time import SECOND_US
from geartrain.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.placement import Plan
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import RowCodec
from geartrain.source import Poll, Reject, Split
from geartrain_simulation.segments import Row

SENSORS = 3


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
    """A bounded source of `records` rows a device, some of them bad; a read takes up to `pause_s_max`."""

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    seed: int = 0
    records: int = 50
    pause_s_max: float = 0.05

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """One split a device."""
        return [_Recorded(f"{device}/{step}", _rows(self.seed, device, self.records), self.pause_s_max)]


def _rows(seed: int, device: str, records: int) -> list[tuple[int, Reading | None]]:
    """(event time, reading) of each row, None for a bad one; times stand still at times."""
    random = Random(f"{seed}/{device}/rows")
    time, rows = SECOND_US, list[tuple[int, Reading | None]]()
    for _ in range(records):
        time += random.choice((0, 1, 1_000, SECOND_US, 3_600 * SECOND_US))
        reading = Reading(f"{device}-{random.randrange(SENSORS)}", random.randrange(40))
        rows.append((time, None if random.random() < 0.05 else reading))
    return rows


def _poll(rows: list[tuple[int, Reading | None]], start: int, end: int) -> Poll:
    """What a read of the rows in [start, end) gives."""
    part = list(enumerate(rows[start:end], start))
    good = [(reading, time, number) for number, (time, reading) in part if reading is not None]
    bad = [Reject(n, f"row {n} is broken", b"\xff", time) for n, (time, reading) in part if reading is None]
    values, times, numbers = map(list, zip(*good, strict=True)) if good else ([], [], [])
    return Poll(values, times, numbers, start + len(part), bad, ended=start + len(part) == len(rows))


class _Recorded:
    out_of_orderness_us = 0

    def __init__(self, name: str, rows: list[tuple[int, Reading | None]], pause_s_max: float) -> None:
        self.name, self._rows, self._pause_s_max = name, rows, pause_s_max
        self._random = Random(f"{name}/pauses")

    async def read(self, position: int, limit: int) -> Poll:
        """Some of the rows from `position` on, at times none."""
        await asyncio.sleep(self._random.uniform(0, self._pause_s_max))
        return _poll(self._rows, position, position + self._random.randint(0, min(limit, 8)))

    async def close(self) -> None:
        """Nothing to release."""


def make_graph(seed: int, records: int, pause_s_max: float = 0.05) -> Graph:
    """Readings to a table as they are, and to another as running totals by sensor."""
    flow = Flow("fleet")
    source = Readings(seed=seed, records=records, pause_s_max=pause_s_max)
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    readings.sink("levels", Table("levels"))
    readings.key_by("sensor").process("totals", Running()).sink("sums", Table("sums"))
    return flow.graph()


def expected_rows(plan: Plan, device: str) -> dict[str, list[Row]]:
    """What a device must send, by channel and in order: its edge steps run over all its rows, undisturbed."""
    fragment = Fragment(plan.graph, plan.edge)
    for step in plan.graph.sources():
        if isinstance(step.operator, SourceOperator) and isinstance(step.operator.source, Readings):
            source = step.operator.source
            for split in source.open(device, step.id, step.out):
                rows = _rows(source.seed, device, source.records)
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
