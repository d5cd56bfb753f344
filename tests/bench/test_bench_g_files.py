"""G: `gear run` over a recorded file of a million rows in order, JSON lines and CSV.

The works are a filter, and the mean of each of 1,000 sensors in each minute, 632,000 of them. Each contender
is a process of its own, from its start to the last result in a file, and Python's imports are among it.

Pathway is a peer where this interpreter has it, or the one that `GEARTRAIN_PATHWAY_PYTHON` names. Readings
are multiples of 1/4, so that their sums are exact however they are made.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.event_time import format_time, parse_time
from tests.bench.harness import ROOT, Absent, Contender, Work, scaled

ROWS = scaled(1_000_000, least=2_000)
SENSORS = 1_000
GAP_US = 120_000
"""Between two rows, at the most, microseconds."""
GEAR, PATHWAY = "gear run", "pathway"
GOALS = {"filter": 1 / 1.5, "windows": 1.0}
_PATHWAY_PYTHON = os.environ.get("GEARTRAIN_PATHWAY_PYTHON", sys.executable if find_spec("pathway") else "")


def readings() -> Iterator[tuple[str, str, float]]:
    """(time, sensor, celsius) of each row."""
    rng, at = random.Random(7), parse_time("2026-01-01T00:00:00Z")
    for _ in range(ROWS):
        at += rng.randrange(GAP_US)
        text = f"{format_time(at - at % 1_000_000).removesuffix('Z')}.{at % 1_000_000:06d}Z"
        yield text, f"oven-{rng.randrange(SENSORS)}", rng.randrange(223) / 4


def write_rows(path: Path) -> Path:
    """The file of all rows."""
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("time,sensor,celsius\n")
            file.writelines(f"{time},{sensor},{celsius}\n" for time, sensor, celsius in readings())
        else:
            file.writelines(
                f'{{"time": "{time}", "sensor": "{sensor}", "celsius": {celsius}}}\n'
                for time, sensor, celsius in readings()
            )
    return path


def rate_of(command: list[str]) -> float:
    """Thousands of rows per CPU-second of a process, with all its threads and children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ROWS / cpu_s / 1_000


def results_of(rows: list[dict[str, Any]], work: str) -> list[tuple[Any, ...]]:
    """What can be compared: the columns of the table, sorted."""
    names = ("sensor", "celsius") if work == "filter" else ("sensor", "window_end", "celsius")
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.mark.parametrize("work", ["filter", "windows"])
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_recorded_file_to_a_table(tmp_path: Path, work: str, form: str) -> None:
    source = write_rows(tmp_path / f"in.{form}")
    flow = f"tests.bench.files_flow:{work}_{form}"

    def by_gear() -> float:
        output = ["--set", f"readings.path={source}", "--output", str(tmp_path / "gear")]
        return rate_of([sys.executable, "-m", "geartrain_client.cli", "run", flow, *output])

    def by_pathway() -> float:
        program = str(ROOT / "tests" / "bench" / "pathway_files.py")
        return rate_of([_PATHWAY_PYTHON, program, work, str(source), str(tmp_path / "pathway.jsonl")])

    contenders: dict[str, Contender | Absent] = {GEAR: by_gear, PATHWAY: _peer(by_pathway)}
    goals = {GEAR: {PATHWAY: GOALS[work]}}
    Work(f"G: {work} over a file, {form}", "krec/cpu-s", contenders, PATHWAY, goals=goals).run()
    found = results_of(json.loads((tmp_path / "gear" / "out.json").read_bytes()), work)
    assert found
    if work == "filter":
        assert found == sorted((sensor, celsius) for _, sensor, celsius in readings() if celsius > 50)
    if (tmp_path / "pathway.jsonl").exists():
        lines = (tmp_path / "pathway.jsonl").read_bytes().splitlines()
        assert results_of([json.loads(line) for line in lines], work) == found


def _peer(run: Callable[[], float]) -> Contender | Absent:
    if not _PATHWAY_PYTHON:
        return Absent("pathway is not installed, and GEARTRAIN_PATHWAY_PYTHON names no Python that has it")
    return run
