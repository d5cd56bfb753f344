"""From a device over a real broker: how much the uplink of one agent sends, and how long until the ack.

The uplink empties a spool of batches of 1,000 records; a process that only acks stands for ingest. For the
latency it is ingest itself, with its log on disk, at default settings: a sensor gives 10,000 records/s by the
clock, and each is timed from then until the ack of its batch is heard.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from geartrain import Flow, Source, Table
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.planning import Plan, make_plan
from geartrain_cloud.broker import BrokerChoice, choose_broker, wait_until_ready
from geartrain_edge.agent.agent import Agent
from geartrain_edge.spool.spool import SqliteSpool
from tests.bench.at_the_edge import SETTINGS, Given, run_agent
from tests.bench.harness import ROOT, Work, fsync_us, scaled
from tests.bench.live_sensor import Reading as LiveReading
from tests.bench.live_sensor import Ticking, Ticks, sending
from tests.bench.test_bench_a_windows import Reading, lines, parsed

RECORDS = scaled(1_000_000, least=20_000)
A_SECOND = 10_000
PATIENCE_S = 120.0
TIMED_S = max(0.5, 10.0 * min(1.0, RECORDS / 1_000_000))
WARM_S = min(1.0, TIMED_S / 2)
"""Not timed: a sensor that has rested is asked again only every `idle_ms_max`, and ingest loads what it needs
at the first commit."""


@contextmanager
def _broker(folder: Path) -> Iterator[BrokerChoice]:
    broker = choose_broker("auto", folder)
    process = subprocess.Popen(broker.command, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=60)
        yield broker
    finally:
        process.kill()
        process.wait()


@contextmanager
def _beside(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, text=True, stdin=stdin, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _acking(port: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return _beside("-m", "tests.bench.acking", str(port), stdin=subprocess.PIPE)


def _plan(source: Source[Any]) -> Plan:
    flow = Flow("readings")
    flow.source("readings", source, out=Reading).sink("out", Table("readings"))
    return make_plan(flow.graph(), "edge")


def test_uplink_of_one_agent(tmp_path: Path) -> None:
    plan = _plan(Given(rows=lines(RECORDS), make=parsed))
    used: list[float] = []

    async def send(folder: Path, port: int) -> None:
        store = SqliteSpool(folder / "spool.sqlite")
        net = AiomqttNet("127.0.0.1", port)
        assert await Agent(SETTINGS, plan, store, net, SystemClock(), SystemRandomness()).run()

    def by_the_clock() -> float:
        folder = tmp_path / f"agent-{len(used)}"
        run_agent(plan, folder, replace(SETTINGS, records_max=1_000))
        began, cpu = time.perf_counter(), time.process_time()
        asyncio.run(send(folder, broker.port))
        used.append(RECORDS / (time.process_time() - cpu) / 1_000)
        return RECORDS / (time.perf_counter() - began) / 1_000

    with _broker(tmp_path) as broker, _acking(broker.port) as acking:
        assert acking.stdout is not None
        assert acking.stdout.readline() == "ready\n"
        contenders = {
            "by the clock": by_the_clock,
            "by the agent's CPU": lambda: used[-1],
            "asked for": lambda: 300.0,
        }
        goals = {"by the clock": {"asked for": 1.0}}
        name = f"uplink over {broker.kind}, 1,000 a batch"
        work = Work(name, "krec/s", contenders, "asked for", versions=("aiomqtt",), goals=goals)
        work.notes.append(f"an fsync on this disk: {fsync_us(tmp_path):.0f} us")
        rows = work.run()
    assert rows[0]["median"] > 0


def test_latency_from_sensor_to_ack(tmp_path: Path) -> None:
    ticks = Ticks(A_SECOND, int(A_SECOND * (WARM_S + TIMED_S)))
    flow = Flow("readings")
    flow.source("readings", Ticking(ticks=ticks), out=LiveReading).sink("out", Table("readings"))
    deadline = time.monotonic() + PATIENCE_S
    with sending(make_plan(flow.graph(), "edge"), tmp_path, "readings") as hops:
        while not hops.acked or hops.acked[-1][1] < ticks.total:
            if hops.acked:
                ticks.go.set()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    took, upto = [], int(A_SECOND * WARM_S)
    for at_s, count in hops.acked:
        took += [(at_s - ticks.began - n / A_SECOND) * 1_000 for n in range(upto, count)]
        upto = max(upto, count)
    assert upto == ticks.total
    found = statistics.quantiles(took, n=100)
    contenders = {
        "p50": lambda: found[49],
        "p95": lambda: found[94],
        "p99": lambda: found[98],
        "asked for": lambda: 50.0,
    }
    name = f"sensor to ack over {hops.broker}, 10,000 records/s (less is better)"
    work = Work(name, "ms", contenders, "asked for", goals={"p99": {"asked for": 1.0}})
    work.notes.append(f"an fsync on this disk: {fsync_us(tmp_path):.0f} us")
    assert len(work.run(rounds=1)) == len(contenders)
