"""A flow of two sources on two devices, the files that they read, and what its tables must be.

`killed_run_golden.py` runs it with release 0.2.0 and `test_killed_run.py` with this one, so it holds only
what both know.
"""

from __future__ import annotations

import csv
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain_devices.csv_replay import CsvReplay

DEVICES, SOURCES, CUT = ("d1", "d2"), ("heat", "doors"), "edge"
START_S, ROWS, WINDOW_S = 1_767_225_600, 120, 30
FLOW = "tests.layouts.killed_run:flow"
TABLES = {
    "readings": ("sensor", "_event_time", "value"),
    "windows": ("sensor", "window_start", "n", "total"),
    "together": ("sensor", "window_start", "n", "total"),
}
"""The columns of each table that are compared."""


class Reading(Record):
    """What both sources give."""

    sensor: str
    value: int


class Window(Record):
    """What a window of a sensor, or of all, comes to."""

    sensor: str
    window_start: int
    n: int
    total: int


def of_all(reading: Reading) -> Reading:
    """The reading as one of all sensors together."""
    return Reading("all", reading.value)


flow = Flow("killed")
heat = flow.source("heat", CsvReplay(time_column="time"), out=Reading)
doors = flow.source("doors", CsvReplay(time_column="time"), out=Reading)
heat.sink("raw", Table("readings"))
_windows = heat.key_by("sensor").window(tumbling(timedelta(seconds=WINDOW_S)))
_found = _windows.aggregate("windows", out=Window, n=agg.count(), total=agg.sum("value"))
_found.sink("of_heat", Table("windows"))
_every = heat.map(of_all, name="heat_of_all").merge("every", doors.map(of_all, name="doors_of_all"))
_windows = _every.key_by("sensor").window(tumbling(timedelta(seconds=WINDOW_S)))
_found = _windows.aggregate("together", out=Window, n=agg.count(), total=agg.sum("value"))
_found.sink("of_every", Table("together"))


def readings(device: str, source: str) -> Iterator[tuple[int, str, int]]:
    """Second, sensor and value of each row that a source of a device reads."""
    chance = random.Random(f"{device}/{source}")
    for second in range(START_S, START_S + ROWS):
        yield second, f"{device}-{chance.randrange(3)}", chance.randrange(-1_000, 1_000)


def write_files(folder: Path) -> None:
    """What the devices read."""
    for device in DEVICES:
        for source in SOURCES:
            with (folder / f"{device}-{source}.csv").open("w", newline="", encoding="utf-8") as file:
                out = csv.writer(file)
                out.writerow(("time", "sensor", "value"))
                for second, sensor, value in readings(device, source):
                    out.writerow((time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second)), sensor, value))


def expected() -> dict[str, Counter[tuple[Any, ...]]]:
    """The rows of each table, in plain Python from the same readings."""
    rows: Counter[tuple[Any, ...]] = Counter()
    windows: dict[tuple[str, int], list[int]] = {}
    together: dict[tuple[str, int], list[int]] = {}
    for device in DEVICES:
        for source in SOURCES:
            for second, sensor, value in readings(device, source):
                start_us = second // WINDOW_S * WINDOW_S * 1_000_000
                together.setdefault(("all", start_us), []).append(value)
                if source == "heat":
                    windows.setdefault((sensor, start_us), []).append(value)
                    rows[sensor, second * 1_000_000, value] += 1
    summed = {"windows": windows, "together": together}
    return {"readings": rows} | {
        table: Counter((*key, len(values), sum(values)) for key, values in of.items())
        for table, of in summed.items()
    }


def agent_toml(folder: Path, device: str, broker: str, speed: str) -> str:
    """The configuration of a device's agent; speed: of its sources, as TOML has it."""
    sources = "".join(
        f"[sources.{source}]\npath = '{folder / f'{device}-{source}.csv'}'\nspeed = {speed}\n"
        for source in SOURCES
    )
    return (
        f"device = '{device}'\nflow = '{FLOW}'\ncut = '{CUT}'\nstate = '{folder / device}'\n"
        f"broker = '{broker}'\n[commit]\nrecords_max = 50\ninterval_ms = 1000\nlinger_ms = 1000\n{sources}"
    )
