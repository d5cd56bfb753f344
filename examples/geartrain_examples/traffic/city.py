"""A made-up city: a grid of n x n cameras and seeded traffic on it, as the files of the traffic demo.

Before the record's path. Guarantees: the same arguments give the same bytes. An honest vehicle is never
faster than 120 km/h between two cameras. Every plate that is used twice is seen at two cameras 5 km apart
within a minute.

A camera stands at each crossing. It sees which street a vehicle takes from there or, at the end of its trip,
by which street it came. Each street has a loop. Two crossings that are neighbours in a row or a column are
joined by two streets, one each way. Each vehicle drives along the grid at a steady speed of its own; a few
streets are jammed for some minutes.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

BLOCK_M = 5_000
SEED = 7
DEPARTURES_S = 3_600
"""Vehicles set out within so long."""
_FAST_SHARE = 0.05
_KMH = (38.0, 58.0)
_FAST_KMH = (64.0, 118.0)
_JAM_SHARE = 0.03
_JAM_MINUTES = 6
_VEHICLE_M = 7.5

Crossing = tuple[int, int]


@dataclass(frozen=True, slots=True)
class City:
    """How large it is; fake_share: the part of the plates that a second vehicle uses as well; loop_s: how
    often a loop says what it has seen, seconds, a part of a minute.
    """

    size: int
    vehicles: int
    fake_share: float
    loop_s: int = 60

    def fakes(self) -> list[str]:
        """The plates that are used twice."""
        return [_plate(number) for number in range(round(self.vehicles * self.fake_share))]

    def passes(self) -> Iterator[tuple[int, str, str, int, str, float]]:
        """Time (1/100 s), detector, edge, lane, vehicle, speed (m/s), vehicle by vehicle."""
        rng, twice = Random(SEED), len(self.fakes())  # noqa: S311 - a game, not a secret
        for number in range(self.vehicles):
            start, departs = self._somewhere(rng), rng.randrange(DEPARTURES_S * 100)
            yield from self._trip(rng, _plate(number), start, departs)
            if number < twice:
                departs += rng.randrange(100, 6_000)
                yield from self._trip(rng, _plate(number), self._beside(start), departs)

    def _somewhere(self, rng: Random) -> Crossing:
        return rng.randrange(self.size), rng.randrange(self.size)

    def _beside(self, crossing: Crossing) -> Crossing:
        """A neighbour of it."""
        x, y = crossing
        return x + (1 if x + 1 < self.size else -1), y

    def _trip(
        self, rng: Random, plate: str, start: Crossing, departs: int
    ) -> Iterator[tuple[int, str, str, int, str, float]]:
        goal = self._somewhere(rng)
        low, high = _FAST_KMH if rng.random() < _FAST_SHARE else _KMH
        speed_mps, time = rng.uniform(low, high) / 3.6, float(departs)
        way = list(_way(rng, start, goal))
        after = [*way[1:], way[-2] if len(way) > 1 else self._beside(start)]
        for number, (crossing, to) in enumerate(zip(way, after, strict=True), 1):
            # At the end of its way a vehicle is still on the street by which it has come.
            edge = _street(to, crossing) if 1 < number == len(way) else _street(crossing, to)
            lane, seen_mps = rng.randrange(2), round(speed_mps * rng.uniform(0.9, 1.1), 2)
            yield round(time), f"cam_{_name(crossing)}_0", edge, lane, plate, seen_mps
            time += 100 * BLOCK_M / (speed_mps * rng.uniform(0.95, 1.0))

    def crossings(self) -> Iterator[Crossing]:
        """All of them, column by column."""
        return ((x, y) for x in range(self.size) for y in range(self.size))

    def streets(self) -> Iterator[str]:
        """All of them: `A0B0` leads from the crossing A0 to B0, `A1A0` from A1 to A0."""
        for x, y in self.crossings():
            for to in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if 0 <= to[0] < self.size and 0 <= to[1] < self.size:
                    yield _street((x, y), to)

    def readings(
        self, counts: dict[tuple[str, int], list[float]], minutes: int
    ) -> Iterator[Sequence[object]]:
        """The rows of the loops: begin_s, detector, n, speed_mps, occupancy_pct; `counts`: by street and
        span of `loop_s`, the speeds of those that passed.
        """
        rng, jams = Random(SEED + 1), dict[str, range]()  # noqa: S311 - the same
        streets = list(self.streets())
        for edge in streets:
            if rng.random() < _JAM_SHARE:
                begins = rng.randrange(minutes)
                jams[edge] = range(begins, begins + _JAM_MINUTES)
        for span in range(minutes * 60 // self.loop_s):
            minute = span * self.loop_s // 60
            for edge in streets:
                speeds = counts.get((edge, span), [])
                mean_mps = round(sum(speeds) / len(speeds), 2) if speeds else -1.0
                occupancy = sum(_VEHICLE_M / max(speed, 1.0) for speed in speeds) / (self.loop_s / 100)
                if minute in jams.get(edge, ()):
                    occupancy += 25 + 30 * rng.random()
                yield (
                    span * float(self.loop_s),
                    f"loop_{edge}_0",
                    len(speeds),
                    mean_mps,
                    round(min(occupancy, 100.0), 2),
                )


def write_city(city: City, folder: Path) -> dict[str, Path]:
    """Write passes, loops and checkpoints of a city, mode 0600; raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    counts: dict[tuple[str, int], list[float]] = {}
    last = 0

    def passes() -> Iterator[Sequence[object]]:
        nonlocal last
        for time, detector, edge, lane, vehicle, speed_mps in city.passes():
            last = max(last, time)
            counts.setdefault((edge, time // (100 * city.loop_s)), []).append(speed_mps)
            yield f"{time // 100}.{time % 100:02}", detector, edge, lane, vehicle, speed_mps

    found = {
        "passes": _write(
            folder / "passes.csv", ("time_s", "detector", "edge", "lane", "vehicle", "speed_mps"), passes()
        )
    }
    found["loops"] = _write(
        folder / "loops.csv",
        ("begin_s", "detector", "n", "speed_mps", "occupancy_pct"),
        city.readings(counts, last // 6_000 + 1),
    )
    places = ((f"cam_{_name((x, y))}_0", x * BLOCK_M, y * BLOCK_M) for x, y in city.crossings())
    found["checkpoints"] = _write(folder / "checkpoints.csv", ("detector", "x_m", "y_m"), places)
    return found


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def _way(rng: Random, start: Crossing, goal: Crossing) -> Iterator[Crossing]:
    """Crossings from start to goal without a detour, in an order of turns that chance gives."""
    x, y = start
    yield x, y
    while (x, y) != goal:
        if x != goal[0] and (y == goal[1] or rng.random() < 0.5):
            x += 1 if goal[0] > x else -1
        else:
            y += 1 if goal[1] > y else -1
        yield x, y


def _name(crossing: Crossing) -> str:
    return f"{_letters(crossing[0])}{crossing[1]}"


def _street(start: Crossing, end: Crossing) -> str:
    return _name(start) + _name(end)


def _plate(number: int) -> str:
    return f"GT-{number:05}"


def _letters(column: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    return ("" if column < 26 else _letters(column // 26 - 1)) + chr(ord("A") + column % 26)
