"""Data for `heat_flow`, its log as devices would have made it, and its tables as `gear run` makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain import Record
from geartrain.graph.graph import Graph
from geartrain.planning import make_plan
from geartrain.records.event_time import SECOND_US
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.cli.inprocess import run_in_process
from tests.explaining.heat_flow import Limit, Reading, flow
from tests.spark.log_writer import LogWriter

FLOW = "tests.explaining.heat_flow:flow"
MINUTE_US = 60 * SECOND_US
SPLITS = {"readings": "readings/local", "limits": "limits/local"}
Items = list[tuple[int, Any]]


class Tenths(Record):
    """What a sensor said in a former revision, which no upgrade takes."""

    sensor: str
    tenths: int


TENTHS = RowCodec(Tenths)


def _as_tenths(rows: Sequence[tuple[Reading, int, str, int]]) -> ColumnBatch:
    readings, times, names, numbers = (list(column) for column in zip(*rows, strict=True))
    former = [Tenths(reading.sensor, round(reading.celsius * 10)) for reading in readings]
    return ColumnBatch(TENTHS.to_columns(former), times, names, numbers)


@dataclass
class Heat:
    """Readings of three sensors in ten minutes, and limits; each with its time, in order."""

    readings: Items = field(default_factory=list)
    limits: Items = field(default_factory=list)

    def graph(self) -> Graph:
        """The flow over this data."""
        data = {"readings": {"items": self.readings}, "limits": {"items": self.limits}}
        return flow.graph().with_options(data)

    def run(self, folder: Path) -> Path:
        """The file of tables that the flow makes of it."""
        run_in_process(self.graph(), folder)
        return folder / "tables.sqlite"

    def write_log(self, folder: Path, instance: str, revised_at: int = 0, former: bool = False) -> LogWriter:
        """Log all that is sent under the cut `cloud`, to its end.

        revised_at: before which hundred of readings the flow's second revision begins, 0 for none; former:
        those before it are of type `Tenths`.
        """
        plan = make_plan(flow.graph(), "cloud")
        writer = LogWriter(folder, instance, {c.id: c.kind for c in plan.channels}, sealed=True)
        for first in range(0, len(self.readings), 100):
            if first == revised_at > 0:
                writer.revise(2)
            for channel, items in (("readings", self.readings), ("limits", self.limits)):
                rows = [
                    (value, time, SPLITS[channel], number)
                    for number, (time, value) in enumerate(items)
                    if first <= number < first + 100
                ]
                if rows and former and channel == "readings" and first < revised_at:
                    writer.append_rows(channel, _as_tenths(rows), schema=TENTHS.schema, clock=rows[-1][1])
                elif rows:
                    writer.append(channel, rows, rows_per_entry=30, clock=rows[-1][1])
        writer.end()
        return writer


def heat(seed: int, count: int = 400) -> Heat:
    """Data drawn by a seed; some readings are none."""
    chance, found = random.Random(seed), Heat()
    for number in range(count):
        time = 1_700_000_000 * SECOND_US + number * 10 * MINUTE_US // count
        celsius = -300.0 if chance.random() < 0.05 else round(chance.uniform(15.0, 30.0), 2)
        found.readings.append((time, Reading(chance.choice(["a", "b", "c"]), celsius)))
        if number % 50 == 20:
            found.limits.append(
                (time + 1, Limit(chance.choice(["a", "b"]), round(chance.uniform(20, 30), 1)))
            )
    return found
