"""The tables of the traffic demo by their definition, without the flow: pandas and fractions over files.

The oracle of the traffic tests. It looks at all rows of a vehicle or a street at once, where the flow sees
one at a time, so that they cannot share a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

TABLES = ("overspeed", "section_overspeed", "fake_plates", "traces", "streets", "city")
START = "2026-01-01T00:00:00Z"
MINUTE_US = 60_000_000

Rows = list[dict[str, Any]]


def read(path: Path, time_column: str, start: str = START) -> pd.DataFrame:
    """A file as text, with the event times in a column `us`."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    origin = datetime.fromisoformat(start) - datetime(1970, 1, 1, tzinfo=UTC)
    base = origin // timedelta(microseconds=1)
    frame["us"] = [base + round(Fraction(text) * 1_000_000) for text in frame[time_column]]  # half to even
    return frame


def as_bytes(rows: Rows) -> bytes:
    """The output contract."""
    return (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def expected(
    passes: pd.DataFrame,
    loops: pd.DataFrame | None = None,
    places: Mapping[str, tuple[str, str]] | None = None,
    *,
    limit_mps: float = 13.89,
    limit_kmh: str = "60",
) -> dict[str, bytes]:
    """Every table as its file holds it; `places`: x and y of detectors, as text."""
    passes = passes.assign(speed=passes["speed_mps"].astype(float))
    ordered = passes.sort_values(["us", "detector"], kind="stable")
    found = {
        "overspeed": _overspeed(passes, limit_mps),
        "section_overspeed": _sections(ordered, places or {}, Fraction(limit_kmh)),
        "fake_plates": _sections(ordered, places or {}, Fraction(200)),
        "traces": _traces(ordered),
        "streets": _streets(passes, loops),
        "city": _city(passes),
    }
    return {name: as_bytes(rows) for name, rows in found.items()}


def text_of(us: int) -> str:
    """A time as the tables show it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{us % 1_000_000:06}" if us % 1_000_000 else "") + "Z"


def exact_mean(values: list[float]) -> float:
    """The exact sum, divided once."""
    return float(sum(map(Fraction, values), Fraction()) / len(values))


def _overspeed(passes: pd.DataFrame, limit_mps: float) -> Rows:
    over = passes[passes["speed"] > limit_mps].sort_values(["us", "detector", "vehicle", "edge", "speed"])
    return [
        {
            "time": text_of(one.us),
            "detector": one.detector,
            "vehicle": one.vehicle,
            "edge": one.edge,
            "speed_mps": one.speed,
        }
        for one in over.itertuples()
    ]


def _sections(ordered: pd.DataFrame, places: Mapping[str, tuple[str, str]], limit_kmh: Fraction) -> Rows:
    found = []
    for vehicle, group in ordered.groupby("vehicle", sort=False):
        rows = list(group.itertuples())
        for a, b in pairwise(rows):
            if a.detector not in places or b.detector not in places:
                continue
            metres = sum(
                abs(Fraction(p) - Fraction(q))
                for p, q in zip(places[a.detector], places[b.detector], strict=True)
            )
            seconds = Fraction(int(b.us) - int(a.us), 1_000_000)
            if metres and (not seconds or metres / seconds * Fraction(36, 10) > limit_kmh):
                found.append(
                    {
                        "time": text_of(b.us),
                        "vehicle": vehicle,
                        "from_detector": a.detector,
                        "to_detector": b.detector,
                        "from_time": text_of(a.us),
                        "distance_m": float(metres),
                        "speed_mps": float(metres / seconds) if seconds else None,
                    }
                )
    return sorted(
        found,
        key=lambda row: (_sortable(row["time"]), row["vehicle"], row["from_detector"], row["to_detector"]),
    )


def _sortable(time: str) -> datetime:
    return datetime.fromisoformat(time)


def _traces(ordered: pd.DataFrame) -> Rows:
    return [
        {
            "vehicle": vehicle,
            "passes": [
                {"time": text_of(one.us), "detector": one.detector, "edge": one.edge, "speed_mps": one.speed}
                for one in group.tail(20).itertuples()
            ],
        }
        for vehicle, group in sorted(ordered.groupby("vehicle"), key=lambda item: item[0])
    ]


def _streets(passes: pd.DataFrame, loops: pd.DataFrame | None) -> Rows:
    frames = [passes] if loops is None else [passes, loops]
    end = max(int(frame["us"].max()) for frame in frames) // MINUTE_US
    speeds: dict[tuple[str, int], list[float]] = {}
    occupancies: dict[tuple[str, int], list[float]] = {}
    for one in passes.itertuples():
        speeds.setdefault((one.edge, one.us // MINUTE_US), []).append(one.speed)
    for one in [] if loops is None else loops.itertuples():
        edge = one.edge if hasattr(one, "edge") else one.detector.removeprefix("loop_").rsplit("_", 1)[0]
        occupancies.setdefault((edge, one.us // MINUTE_US), []).append(float(one.occupancy_pct))
    seen = [*speeds, *occupancies]
    found = []
    for edge in sorted({edge for edge, _ in seen}):
        for minute in range(min(m for e, m in seen if e == edge), end + 1):
            now, occupied = speeds.get((edge, minute), []), occupancies.get((edge, minute), [])
            mean, occupancy = (exact_mean(some) if some else None for some in (now, occupied))
            before = [len(speeds.get((edge, minute - back), [])) for back in (1, 2, 3)]
            if (mean is not None and len(now) >= 3 and mean < 5) or (occupancy or 0) >= 25:
                level = "congested"
            else:
                level = "silent" if not now and min(before) >= 3 else "free"
            found.append(
                {
                    "edge": edge,
                    "minute": text_of(minute * MINUTE_US),
                    "passes": len(now),
                    "mean_speed_mps": mean,
                    "occupancy_pct": occupancy,
                    "level": level,
                }
            )
    return found


def _city(passes: pd.DataFrame) -> Rows:
    return [
        {
            "minute": text_of(int(minute) * MINUTE_US),
            "passes": len(group),
            "mean_speed_mps": exact_mean(list(group["speed"])),
        }
        for minute, group in passes.groupby(passes["us"] // MINUTE_US)
    ]
