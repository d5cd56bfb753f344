"""Side-by-side benchmarks: contenders take turns, round by round, so that what disturbs one disturbs all.

Prints one table and appends to build/bench.json. A figure is a median of rounds with its range; ratios are
made round by round. `GEARTRAIN_BENCH_SIZE` scales the work (CI runs 0.01 for correctness only).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZE = float(os.environ.get("GEARTRAIN_BENCH_SIZE", "1"))


def scaled(count: int, least: int = 1) -> int:
    """`count` at full size."""
    return max(least, round(count * SIZE))


@dataclass
class Work:
    """One piece of work and its contenders: each is called once a round and returns a figure in `unit`."""

    work: str
    unit: str
    contenders: Mapping[str, Callable[[], float]]
    against: str
    targets: Mapping[str, float] = field(default_factory=dict)
    versions: tuple[str, ...] = ()

    def run(self, rounds: int) -> list[dict[str, Any]]:
        """The rows of build/bench.json for this work; also printed as a table."""
        load = os.getloadavg()[0]
        found: dict[str, list[float]] = {name: [] for name in self.contenders}
        for _ in range(rounds):
            for name, contender in self.contenders.items():
                found[name].append(contender())
        rows = [self._row(name, found, load) for name in self.contenders]
        _print_table(rows)
        _save(self.work, rows)
        return rows

    def _row(self, name: str, found: Mapping[str, list[float]], load: float) -> dict[str, Any]:
        figures = found[name]
        ratio = statistics.median(a / b for a, b in zip(figures, found[self.against], strict=True))
        return {
            "work": self.work,
            "name": name,
            "unit": self.unit,
            "median": statistics.median(figures),
            "low": min(figures),
            "high": max(figures),
            "ratios": {} if name == self.against else {self.against: ratio},
            "target": dict(self.targets) if name != self.against else {},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "load": round(load, 2),
            "versions": {package: version(package) for package in self.versions},
        }


def _print_table(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    print(
        f"\n{first['work']} [{first['unit']}], size {SIZE:g}; {first['machine']}, load {first['load']}",
        end="",
    )
    print("".join(f", {name} {v}" for name, v in first["versions"].items()))
    print(f"  {'':28} {'median':>12} {'low':>12} {'high':>12}  ratio")
    for row in rows:
        ratios = ", ".join(f"{v:.2f} x {k}" for k, v in row["ratios"].items())
        print(f"  {row['name']:28} {row['median']:12,.1f} {row['low']:12,.1f} {row['high']:12,.1f}  {ratios}")
    sys.stdout.flush()


def _save(work: str, rows: list[dict[str, Any]]) -> None:
    path = ROOT / "build" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    old = json.loads(path.read_text()) if path.exists() else []
    kept = [row for row in old if row["work"] != work]
    path.write_text(json.dumps([*kept, *rows], indent=1) + "\n")
