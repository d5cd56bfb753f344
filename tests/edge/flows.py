"""A small flow for the agent's tests, its items, and what its edge must put out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.source import Reject
from geartrain.testing import TestingSource

Row = tuple[Any, int, str, int, bytes]
"""A record with its event time and origin."""


class Reading(Record):
    sensor: str
    level: float


class Total(Record):
    sensor: str
    count: int
    level: float


class Sums(State):
    count: int = 0
    level: float = 0.0


class Running(Task[Reading, Total]):
    state = Sums

    def on_next(self, reading: Reading, ctx: Context[Total, Sums]) -> None:
        ctx.state.count += 1
        ctx.state.level += reading.level
        ctx.emit(Total(reading.sensor, ctx.state.count, ctx.state.level))
        if reading.level == 13:
            raise ValueError("an unlucky level")


def items(count: int, seed: int = 1) -> list[Any]:
    """Readings in order of time, with a few that are late, broken or refused by the task."""
    random_ = random.Random(seed)
    found: list[Any] = []
    time = SECOND_US
    for number in range(count):
        time += random_.choice((0, 1, SECOND_US))
        reading = Reading(f"s{random_.randrange(3)}", random_.randrange(200) / 10)
        if number % 17 == 5:
            found.append(Reject(number, f"row {number} is broken", b"\xff\x00", None))
        elif number % 17 == 9:
            found.append((time - 10 * SECOND_US, reading))
        else:
            found.append((time, Reading(reading.sensor, 13.0) if number % 17 == 13 else reading))
    return found


def plan_of(given: Sequence[Any], cut: str = "edge", source: Any = None) -> Plan:
    """Readings to a table, and their running totals by sensor to another."""
    flow = Flow("fleet")
    readings = flow.source(
        "readings", source or TestingSource(items=list(given)), out=Reading, partitioned_by="sensor"
    )
    readings.sink("levels", Table("levels"))
    readings.key_by("sensor").process("totals", Running()).sink("sums", Table("sums", key=("sensor",)))
    return make_plan(flow.graph(), cut)


def expected(plan: Plan, device: str = "d1") -> dict[str, list[Row]]:
    """The rows of each channel, by one fragment that is fed everything at once."""
    return asyncio.run(_expected(plan, device))


async def _expected(plan: Plan, device: str) -> dict[str, list[Row]]:
    fragment = Fragment(plan.graph, plan.edge)
    for step in plan.graph.sources():
        assert isinstance(step.operator, SourceOperator)
        for split in step.operator.source.open(device, step.id, step.out):
            tracker = SplitTracker(step.id, split.name, split.out_of_orderness_us, None)
            while not tracker.progress.ended:
                batch, late, rejected = tracker.observe(await split.read(tracker.progress.position, 100_000))
                for letter in rejected:
                    fragment.reject(letter)
                for letter in late:
                    fragment.divert_late(letter)
                fragment.feed(step.id, batch)
    rows: dict[str, list[Row]] = {channel.id: [] for channel in plan.channels}
    for channel, batches in fragment.take().batches.items():
        for batch in batches:
            origins = [batch.origin(row) for row in range(len(batch))]
            rows[channel] += [
                (value, time, origin.name, origin.number, origin.path)
                for value, time, origin in zip(batch.values, batch.times, origins, strict=True)
            ]
    return {channel: sorted(found, key=lambda row: row[2:]) for channel, found in rows.items()}
