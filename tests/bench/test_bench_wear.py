"""What a record costs the flash of a device: bytes that the agent's process writes, by durability.

The figure is `write_bytes` of /proc/self/io: whole blocks of 4 KiB that go to a disk. Those of the file
system's own journal are not among them. The agent, its spool and its acks are real; the broker is in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from geartrain import Flow, Record, Source, Table
from geartrain.adapters.system import SystemClock
from geartrain.planning import make_plan
from geartrain.source import Batch, Split
from geartrain.testing import SeededRandomness
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.spool import SqliteSpool
from tests.bench.harness import SIZE
from tests.edge.network import MemoryNet, NaiveIngest

SECONDS = 20.0 if SIZE > 0.01 else 2.0
PER_S = 10
_ROWS: list[tuple[int, float, float]] = []


class Celsius(Record):
    """What a sensor says."""

    sensor: str
    celsius: float


class _Probe:
    """`PER_S` readings a second, for `SECONDS`."""

    name, out_of_orderness_us = "d1/probe", 0

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def read(self, position: int, limit: int) -> Batch:
        passed_s = min(time.monotonic() - self._began_s, SECONDS)
        numbers = range(position, min(round(passed_s * PER_S), position + limit))
        readings = [Celsius("probe", n % 80 / 4) for n in numbers]
        times = [time.time_ns() // 1_000] * len(numbers)
        return Batch(readings, times, numbers, position + len(numbers), ended=passed_s == SECONDS)

    async def close(self) -> None:
        """Nothing to release."""


class Probes(Source[Celsius]):
    """One probe."""

    pausable: ClassVar[bool] = False

    def open(self, device: str, step: str, out: type[Celsius]) -> Sequence[Split]:
        """The probe of this device."""
        return [_Probe()]


def _written_bytes() -> int:
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if line.startswith("write_bytes")).split()[1])


@pytest.mark.parametrize("durability_ms", [0, 1_000, 10_000])
def test_bytes_written_for_a_record(tmp_path: Path, durability_ms: int) -> None:
    flow = Flow("probes")
    flow.source("probes", Probes(), out=Celsius).sink("out", Table("out"))
    plan = make_plan(flow.graph(), "edge")
    ingest = NaiveIngest(plan)
    settings = AgentSettings("d1", durability_ms=durability_ms)
    spool: Any = SqliteSpool(tmp_path / "spool.sqlite")
    agent = Agent(settings, plan, spool, MemoryNet(ingest), SystemClock(), SeededRandomness(1))
    before = _written_bytes()
    assert asyncio.run(agent.run())
    records = len(ingest.rows["probes"])
    assert records == round(SECONDS * PER_S)
    each = (_written_bytes() - before) / records
    _ROWS.append((durability_ms, each, each * PER_S * 86_400 / 1e6))
    a_day_mb = _ROWS[-1][2]
    print(f"durability {durability_ms} ms: {each:,.0f} bytes a record, {a_day_mb:,.0f} MB a day at {PER_S}/s")
    if SIZE > 0.01 and durability_ms:
        assert each < _ROWS[0][1] / 3
