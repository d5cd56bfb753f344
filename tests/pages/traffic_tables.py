"""Tables of a small city to look at: seeded, with an accident, a street that falls silent, and a plate used
twice; no flow is run for them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from geartrain.declarations.sink import Table
from geartrain.records.event_time import from_datetime
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_examples.traffic.records import (
    Checkpoint,
    CityMinute,
    Overspeed,
    Section,
    StreetMinute,
    Trace,
    TracePass,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = 12
LIMIT_MPS = 13.89
TABLES: dict[str, tuple[type, tuple[str, ...]]] = {
    "overspeed": (Overspeed, ()),
    "section_overspeed": (Section, ()),
    "fake_plates": (Section, ()),
    "traces": (Trace, ("vehicle",)),
    "streets": (StreetMinute, ("edge", "minute")),
    "city": (CityMinute, ("minute",)),
    "checkpoints": (Checkpoint, ("detector",)),
}


def edges(size: int = 4) -> list[str]:
    """The streets of a grid of crossings, both ways, as SUMO names them, with those that lead out."""
    names = {(x, y): f"{chr(ord('A') + x)}{y}" for x in range(size) for y in range(size)}
    pairs = [(n, names[x + 1, y]) for (x, y), n in names.items() if x + 1 < size]
    pairs += [(n, names[x, y + 1]) for (x, y), n in names.items() if y + 1 < size]
    for i in range(size):
        pairs += [(names[0, i], f"left{i}"), (names[size - 1, i], f"right{i}")]
        pairs += [(names[i, 0], f"bottom{i}"), (names[i, size - 1], f"top{i}")]
    return sorted([a + b for a, b in pairs] + [b + a for a, b in pairs])


def at(seconds: float) -> datetime:
    """So many seconds after the start."""
    return START + timedelta(seconds=seconds)


class City:
    """The tables in a folder; rows are added as a driver would add them, micro-batch by micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tables.sqlite"
        self._tables = SqliteTables(self.path)
        self._batch = 0
        self._number = 0
        for name, (kind, key) in TABLES.items():
            self._tables.declare(f"{name}_table", Table(name, key=key), RowCodec(kind).schema)

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Write rows by table."""
        batches = {f"{name}_table": [self._batch_of(name, values)] for name, values in rows.items()}
        self._tables.write("all", self._batch, {"all": self._batch}, batches)
        self._batch += 1

    def _batch_of(self, name: str, values: Sequence[Any]) -> ColumnBatch:
        numbers = list(range(self._number, self._number + len(values)))
        self._number += len(values)
        times = [from_datetime(getattr(v, "time", getattr(v, "minute", START))) for v in values]
        codec = RowCodec(TABLES[name][0])
        return ColumnBatch(codec.to_columns(values), times, ["row"] * len(values), numbers)

    def close(self) -> None:
        """Close the file."""
        self._tables.close()


def trace(vehicle: str, way: Sequence[str], first_s: float, speed_mps: float = 12.0) -> Trace:
    """A vehicle that passes a camera every 20 s."""
    passes = [TracePass(at(first_s + 20 * i), f"cam_{e}_0", e, speed_mps) for i, e in enumerate(way)]
    return Trace(vehicle, passes)


def jump(vehicle: str, start: str, end: str, from_s: float, seconds: float, distance_m: float) -> Section:
    """A plate at two cameras."""
    speed = distance_m / seconds if seconds else None
    return Section(
        at(from_s + seconds), vehicle, f"cam_{start}_0", f"cam_{end}_0", at(from_s), distance_m, speed
    )


def build(folder: Path, size: int = 4, seed: int = 7, minutes: int = MINUTES) -> City:
    """A city: C3B3 is blocked in minutes 4 to 8, so that C3 is congested and B3A3 falls silent."""
    chance, city = random.Random(seed), City(folder)
    jammed = {"C3B3": (4, 9), "D3C3": (5, 9), "C2C3": (6, 8)}
    rows: list[StreetMinute] = []
    for minute in range(minutes):
        for edge in edges(size):
            first, last = jammed.get(edge, (99, 99))
            if edge == "B3A3" and minute in range(6, 10):
                rows.append(StreetMinute(edge, at(60 * minute), 0, None, 0.0, "silent"))
            elif first <= minute < last:
                rows.append(StreetMinute(edge, at(60 * minute), 3, chance.uniform(1, 4.9), 61.5, "congested"))
            else:
                passes = chance.randrange(6)
                mean = chance.uniform(9, 13) if passes else None
                rows.append(StreetMinute(edge, at(60 * minute), passes, mean, chance.uniform(0, 9), "free"))
    whole = [
        CityMinute(at(60 * m), sum(r.passes for r in rows if r.minute == at(60 * m)), 11.25)
        for m in range(minutes)
    ]
    fast = [
        Overspeed(at(t := chance.uniform(0, 60 * minutes)), f"cam_{e}_0", f"{int(t) % 90}", e, 13.9 + t / 90)
        for e in chance.choices(edges(size), k=40)
    ]
    way = ["left1A1", "A1B1", "B1C1", "C1C2", "C2C3", "C3B3", "B3top1"]
    twice = trace("FAKE 1", ["left0A0", "A0A1", "A1B1", "D3D2", "D2D1"], 200)
    caught = jump("FAKE 1", "A1B1", "D3D2", 240, 20, 1500.0)
    at_once = jump("FAKE 2", "A0A1", "D3D2", 300, 0, 2000.0)
    city.add(
        {
            "streets": rows,
            "city": whole,
            "overspeed": [Overspeed(at(150), "cam_B1C1_0", "100", "B1C1", 21.5), *fast],
            "section_overspeed": [jump("100", "A1B1", "B1C1", 130, 20, 400.0), caught, at_once],
            "fake_plates": [caught, at_once],
            "traces": [
                trace("100", way, 110),
                twice,
                trace("FAKE 2", ["A0A1", "D3D2"], 300),
                trace("7", ["A0A1"], 5),
            ],
        }
    )
    return city
