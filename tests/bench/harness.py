"""Side-by-side benchmarks: contenders take turns, round by round, so that what disturbs one disturbs all.

Prints one table and writes the work's rows into build/bench.json. A figure is a median of rounds with its
range; a ratio is the median of the ratios round by round. `GEARTRAIN_BENCH_SIZE` scales the work (CI runs
0.01 for correctness only). A contender that cannot run stands in the table with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZE = float(os.environ.get("GEARTRAIN_BENCH_SIZE", "1"))
ROUNDS = 1 if SIZE <= 0.01 else 3

Contender = Callable[[], float]


def scaled(count: int, least: int = 1) -> int:
    """`count` at full size."""
    return max(least, round(count * SIZE))


class Absent:
    """A contender that cannot run here, and why; it stands in the table all the same."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def peer(package: str, make: Callable[[], Contender]) -> Contender | Absent:
    """The contender that `make` builds, where its package is installed (the extra `bench` brings it)."""
    if find_spec(package) is None:
        return Absent(f"{package} is not installed")
    for module in _LOADED.get(package, (package,)):
        import_module(module)  # what an import costs is not what a record costs
    return make()


_LOADED = {
    "bytewax": ("bytewax.dataflow", "bytewax.operators.windowing", "bytewax.testing"),
    "reactivex": ("reactivex", "reactivex.operators"),
}


@dataclass
class Work:
    """One piece of work and its contenders: each is called once a round and returns a figure in `unit`.

    against: the one or those that ratios are printed to; targets: the ratio of all others to it; goals: the
    ratios of single contenders, by contender and whom it is compared with; notes: what is printed below.
    """

    work: str
    unit: str
    contenders: Mapping[str, Contender | Absent]
    against: str | tuple[str, ...]
    targets: Mapping[str, float] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    goals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, rounds: int = ROUNDS) -> list[dict[str, Any]]:
        """The rows of build/bench.json for this work; also printed as a table."""
        load = os.getloadavg()[0]
        found: dict[str, list[float]] = {name: [] for name in self.contenders}
        for _ in range(rounds):
            for name, contender in self.contenders.items():
                if not isinstance(contender, Absent):
                    found[name].append(contender())
        rows = [self._row(name, found, load) for name in self.contenders]
        self._print(rows)
        _save(self.work, rows)
        return rows

    def _row(self, name: str, found: Mapping[str, list[float]], load: float) -> dict[str, Any]:
        figures, contender = found[name], self.contenders[name]
        row: dict[str, Any] = {"work": self.work, "name": name, "unit": self.unit}
        if isinstance(contender, Absent):
            row |= {"median": None, "low": None, "high": None, "not_run": contender.reason}
        else:
            row |= {"median": statistics.median(figures), "low": min(figures), "high": max(figures)}
        ratios = {
            other: statistics.median(a / b for a, b in zip(figures, others, strict=True) if b)
            for other, others in found.items()
            if other != name and figures and any(others)
        }
        against = (self.against,) if isinstance(self.against, str) else self.against
        return row | {
            "ratios": ratios,
            "target": dict(self.goals.get(name, {} if self.goals or name in against else self.targets)),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "load": round(load, 2),
            "versions": {package: _version(package) for package in self.versions},
            "size": SIZE,
        }

    def _print(self, rows: list[dict[str, Any]]) -> None:
        first = rows[0]
        versions = "".join(f", {name} {v}" for name, v in first["versions"].items())
        where = f"{first['machine']}, load {first['load']}{versions}"
        print(f"\n{self.work} [{self.unit}], size {SIZE:g}; {where}")
        print(f"  {'':28} {'median':>12} {'low':>12} {'high':>12}  ratio (target)")
        against = (self.against,) if isinstance(self.against, str) else self.against
        for row in rows:
            if row["median"] is None:
                print(f"  {row['name']:28} not run: {row['not_run']}")
                continue
            shown = dict.fromkeys([*row["target"], *against])
            told = [_told(row, other) for other in shown if other in row["ratios"]]
            figures = " ".join(f"{row[figure]:12,.1f}" for figure in ("median", "low", "high"))
            print(f"  {row['name']:28} {figures}  {', '.join(told)}")
        for note in self.notes:
            print(f"  {note}")
        sys.stdout.flush()


def _told(row: Mapping[str, Any], other: str) -> str:
    goal = row["target"].get(other)
    return f"{row['ratios'][other]:.2f} x {other}" + ("" if goal is None else f" ({goal:g})")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _save(work: str, rows: list[dict[str, Any]]) -> None:
    path = ROOT / "build" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    old = json.loads(path.read_text()) if path.exists() else []
    kept = [row for row in old if row["work"] != work]
    path.write_text(json.dumps([*kept, *rows], indent=1) + "\n")


def rate(count: int, work: Callable[[], Any]) -> float:
    """Thousands of records per CPU-second of this process, all its threads counted, for one run of `work`."""
    began = time.process_time()
    work()
    return count / max(time.process_time() - began, 1e-9) / 1_000


def fsync_us(folder: Path, times: int = 20) -> float:
    """What one fsync of four fresh kilobytes costs in `folder`, microseconds: the median of `times`."""
    took = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(times):
            file.write(b"x" * 4_096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)
