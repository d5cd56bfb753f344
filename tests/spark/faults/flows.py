"""The flow of the fault tests, what its log holds, and plain Python that says what its tables must hold.

Two sources are merged, so that records are held until the clock has passed them, and each sensor has a timer:
a kill finds both in Spark's state.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.letters import Letter
from geartrain.testing import TestingSource
from geartrain_cloud.sinks.tables import rows
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter
from tests.waiting import WAIT_S

MILLISECOND = 1_000
T0 = 1_700_000_000_000 * MILLISECOND
QUIET_MS = 3
SENSORS = 40
RUN_ROWS = 20
LEFT, RIGHT = "left", "right"
INSTANCE = "held.1"
"""What the log calls the flow."""

Row = tuple[Reading, int, str, int]


class Sum(Record):
    """What a sensor's values add up to; the count is below zero where its timer has come."""

    sensor: str
    count: int
    total: float


class Running(State):
    """Of one sensor."""

    count: int = 0
    total: float = 0.0
    last: int = 0


class Adding(Task[Reading, Sum]):
    """Adds up, in an order that floats make visible, and says when a sensor was quiet."""

    state = Running

    def on_next(self, reading: Reading, ctx: Context[Sum, Running]) -> None:
        ctx.state.count += 1
        ctx.state.total = ctx.state.total * 0.75 + reading.value
        ctx.state.last = ctx.event_time
        ctx.notify_at(ctx.event_time + QUIET_MS * MILLISECOND + 1)
        ctx.emit(Sum(reading.sensor, ctx.state.count, ctx.state.total))

    def on_notify(self, time: int, ctx: Context[Sum, Running]) -> None:
        if time == ctx.state.last + QUIET_MS * MILLISECOND + 1:
            ctx.emit(Sum(ctx.key, -ctx.state.count, ctx.state.total))


class Gate:
    """Lets every record pass; at one of value `value` it says its process id and waits, until it is killed or
    the gate is open.
    """

    def __init__(self, folder: Path, value: float = 77.0) -> None:
        self.folder, self.value = str(folder), value

    def __call__(self, reading: Reading) -> bool:
        if reading.value == self.value:
            folder = Path(self.folder)
            place = folder / f"{reading.sensor}.pid"
            if not (folder / f"{reading.sensor}.open").exists():
                draft = place.with_suffix(f".{os.getpid()}")
                draft.write_text(str(os.getpid()))
                draft.replace(place)
                deadline = time.monotonic() + WAIT_S
                while not (folder / f"{reading.sensor}.open").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
        return True


def held_flow(gate: Gate | None = None) -> Flow:
    """The running sums of each sensor, from two sources, to two tables."""
    flow = Flow("held")
    left = flow.source(LEFT, TestingSource[Reading](), out=Reading)
    right = flow.source(RIGHT, TestingSource[Reading](), out=Reading)
    merged = left.merge("both", right)
    if gate is not None:
        merged = merged.filter(gate, name="gate")
    sums = merged.key_by("sensor", name="by_sensor").process("adding", Adding())
    sums.sink("each", Table("each_sum"))
    sums.sink("last", Table("last_sum", key=("sensor",)))
    return flow


def held_writer(folder: Path) -> LogWriter:
    """The log of `held_flow` in `folder`."""
    kinds = {LEFT: Reading, RIGHT: Reading, "_dead_letters": Letter, "_late": Letter}
    return LogWriter(folder, INSTANCE, kinds)


class HeldLog:
    """Writes the log of `held_flow`: the right source lags behind, so that records of the left are held."""

    def __init__(self, writer: LogWriter, seed: int = 1) -> None:
        self.writer = writer
        self.records: list[Row] = []
        self._rng = random.Random(seed)
        self._waiting: list[Row] = []

    def append(self, count: int) -> None:
        """Add `count` records a millisecond apart, a third of them of the right source."""
        split: dict[str, list[Row]] = {LEFT: [], RIGHT: self._waiting}
        for number in range(len(self.records), len(self.records) + count):
            side = RIGHT if self._rng.random() < 0.33 else LEFT
            reading = Reading(f"s{self._rng.randrange(SENSORS)}", round(self._rng.uniform(0.1, 9.9), 3))
            row = (reading, T0 + number * MILLISECOND, f"device-1/{side}", number)
            self.records.append(row)
            split[side].append(row)
        keep = len(split[RIGHT]) // 3
        self._waiting = split[RIGHT][len(split[RIGHT]) - keep :]
        sent = {LEFT: split[LEFT], RIGHT: split[RIGHT][: len(split[RIGHT]) - keep]}
        for first in range(0, max(map(len, sent.values())), RUN_ROWS):  # both sources, in turns
            for side, found in sent.items():
                self._write(side, found[first : first + RUN_ROWS])

    def append_one(self, sensor: str, value: float) -> None:
        """Add a record of the left source, in an entry by itself."""
        number = len(self.records)
        row = (Reading(sensor, value), T0 + number * MILLISECOND, f"device-1/{LEFT}", number)
        self.records.append(row)
        self._write(LEFT, [row])

    def _write(self, channel: str, found: Sequence[Row]) -> None:
        for first in range(0, len(found), RUN_ROWS):
            run = found[first : first + RUN_ROWS]
            self.writer.append(channel, run, clock=run[-1][1])

    def end(self) -> None:
        """All sources have ended."""
        self._write(RIGHT, self._waiting)
        self.writer.advance(END_OF_TIME)
        self.writer.close()


def expected(records: Sequence[Row]) -> list[tuple[str, int, float]]:
    """All rows of `each_sum`, in the order of their event times."""
    count: dict[str, int] = {}
    total: dict[str, float] = {}
    last: dict[str, int] = {}
    found: list[tuple[int, tuple[str, int, float]]] = []
    quiet = QUIET_MS * MILLISECOND + 1
    for reading, at, _, _ in sorted(records, key=lambda row: row[1]):
        name = reading.sensor
        if name in last and last[name] + quiet <= at:
            found.append((last[name] + quiet, (name, -count[name], total[name])))
        count[name] = count.get(name, 0) + 1
        total[name] = total.get(name, 0.0) * 0.75 + reading.value
        last[name] = at
        found.append((at, (name, count[name], total[name])))
    found += [(at + quiet, (name, -count[name], total[name])) for name, at in last.items()]
    return [row for _, row in sorted(found)]


def columns(found: Sequence[dict[str, Any]]) -> list[tuple[str, int, float]]:
    return [(row["sensor"], row["count"], row["total"]) for row in found]


def assert_tables(path: Path, records: Sequence[Row]) -> None:
    """The tables hold what plain Python makes of the records: each row once, none too many."""
    wanted = expected(records)
    assert sorted(columns(rows(path, "each_sum"))) == sorted(wanted)
    assert columns(rows(path, "each_sum", canonical=True)) == wanted
    assert sorted(columns(rows(path, "last_sum"))) == sorted({row[0]: row for row in wanted}.values())
    assert rows(path, "dead_letters") == []
