"""What an agent takes of a device: memory on work A, as records go by, and the CPU time of its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.harness import ROOT, SIZE, Contender, Work, peer, scaled
from tests.bench.test_bench_a_windows import KEYS

RSS_MB_MAX = 60.0
GROWTH_MB_MAX = 2.0


@pytest.mark.parametrize("records", [1_000_000, 10_000_000])
def test_memory_of_the_agent(records: int, tmp_path: Path) -> None:
    count = scaled(records, least=10 * KEYS) // (10 * KEYS) * 10 * KEYS
    command = [sys.executable, "-m", "tests.bench.steady_agent", str(count), str(tmp_path)]
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    on_the_way = told["mb"]
    work = Work(
        f"memory of the agent on A, {count:,} records",
        "MB RSS",
        {
            "at a tenth": lambda: float(on_the_way[0]),
            "at the end": lambda: float(on_the_way[-1]),
            "peak": lambda: float(told["peak_mb"]),
            "bound": lambda: RSS_MB_MAX,
        },
        "bound",
        {"bound": 1.0},
    )
    work.notes.append(f"{count / told['cpu_s'] / 1_000:.1f} krec/cpu-s, making the lines and acks among it")
    work.run(rounds=1)
    assert 0 < told["means"] <= count // 10
    assert len(on_the_way) == 10
    if SIZE >= 1:
        assert told["peak_mb"] < RSS_MB_MAX
        assert on_the_way[-1] - on_the_way[1] < GROWTH_MB_MAX, on_the_way


_CPU = """
import resource
{}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


AGENT = (
    "geartrain_edge.agent.process; geartrain_edge.agent.process.prepare(); import geartrain_edge.agent.main"
)
"""As the agent's process imports it."""


def test_cpu_of_an_import(tmp_path: Path) -> None:
    # Bytecode is there after the first time, as on a device where the agent was installed.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}

    def cpu_ms(statement: str) -> float:
        command = [sys.executable, "-c", _CPU.format(statement)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout) * 1_000

    def importing(module: str) -> Contender:
        cpu_ms(f"import {module}")
        return lambda: max(0.0, cpu_ms(f"import {module}") - cpu_ms("pass"))

    work = Work(
        "imports, beyond Python's own (less is better)",
        "CPU ms",
        {
            "agent": importing(AGENT),
            "agent and its MQTT client": importing(f"{AGENT}, geartrain.adapters.mqtt"),
            "bytewax": peer("bytewax", lambda: importing("bytewax.run, bytewax.operators.windowing")),
            "streamz": peer("streamz", lambda: importing("streamz")),
            "reactivex": peer("reactivex", lambda: importing("reactivex, reactivex.operators")),
            "bound": lambda: 150.0,
        },
        "bound",
        goals={"agent": {"bound": 1.0}},
    )
    rows = work.run(rounds=5 if SIZE >= 0.1 else 1)
    assert rows[0]["median"] > 0
