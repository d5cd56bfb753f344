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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from geartrain import Flow, Source, Table
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.placement import Plan, make_plan
from geartrain.ports import Connection, Incoming, SpoolCommit
from geartrain.source import Poll, Split
from geartrain.wire.codec import decode_control
from geartrain.wire.envelope import Ack
from geartrain_cloud.broker import BrokerChoice, choose_broker, wait_until_ready
from geartrain_edge.agent import Agent
from geartrain_edge.spool import SqliteSpool
from tests.bench.at_the_edge import SETTINGS, Given, run_agent
from tests.bench.harness import ROOT, Work, fsync_us, scaled
from tests.bench.test_bench_a_windows import Reading, lines, parsed

RECORDS = scaled(1_000_000, least=20_000)
A_SECOND = 10_000
TIMED_S = max(0.5, 10.0 * min(1.0, RECORDS / 1_000_000))


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
    return make_plan(flow.graph(), "auto")


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


class Ticking(Source[Reading]):
    """A sensor of so many readings a second by the clock, for a while."""

    bounded: ClassVar[bool] = True
    pausable: ClassVar[bool] = True
    ticks: Any = field(default=None)

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """The one split."""
        self.ticks.name = f"{device}/{step}"
        return [self.ticks]


@dataclass
class _Ticks:
    """Reading n is born at `began` + n / A_SECOND; the first at once, and the others once `is_ready`, so that
    neither programs nor connections are waited for.
    """

    total: int
    is_ready: Callable[[], bool] = field(default=lambda: True)
    name: str = ""
    out_of_orderness_us: int = 0
    began: float = 0.0

    async def read(self, position: int, limit: int) -> Poll:
        """Those that are born."""
        if not self.began and position and self.is_ready():
            self.began = time.perf_counter() - position / A_SECOND
        due = int((time.perf_counter() - self.began) * A_SECOND) if self.began else 1
        end = min(due, position + limit, self.total)
        numbers = range(position, max(position, end))
        values = [Reading(f"sensor-{n % 1_000:03d}", n, n % 80 / 4) for n in numbers]
        times = [1_700_000_000_000_000 + n * 1_000_000 // A_SECOND for n in numbers]
        return Poll(values, times, numbers, numbers.stop, ended=numbers.stop == self.total)

    async def close(self) -> None:
        """Nothing to release."""


class _Watched(SqliteSpool):
    """A spool that knows how many records were in all batches up to each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.upto: dict[int, int] = {}
        self._count = 0

    async def commit(self, change: SpoolCommit) -> None:
        """Note how many records there are up to each batch."""
        for batch in change.batches:
            self._count += batch.count
            self.upto[batch.seq] = self._count
        await super().commit(change)


class _Listening:
    """A net that notes each ack that comes, and when."""

    def __init__(self, port: int) -> None:
        self._net = AiomqttNet("127.0.0.1", port)
        self.acked: list[tuple[float, int]] = []

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[Connection]:
        """A connection as the agent has it."""
        async with self._net.connect(client_id) as connection:
            yield _Heard(connection, self.acked)


class _Heard:
    """A connection that passes on everything."""

    def __init__(self, connection: Connection, acked: list[tuple[float, int]]) -> None:
        self._connection, self._acked = connection, acked
        self.publish, self.subscribe = connection.publish, connection.subscribe

    async def incoming(self) -> AsyncIterator[Incoming]:
        """What comes, and the acks of it noted."""
        async for one in self._connection.incoming():
            if isinstance(control := decode_control(one.payload), Ack):
                self._acked.append((time.perf_counter(), control.seq))
            yield one


def test_latency_from_sensor_to_ack(tmp_path: Path) -> None:
    heard: list[tuple[float, int]] = []
    ticks = _Ticks(int(A_SECOND * TIMED_S), lambda: any(store.upto.get(seq) for _, seq in heard))
    plan = _plan(Ticking(ticks=ticks))
    store = _Watched(tmp_path / "agent" / "spool.sqlite")

    async def run(port: int) -> None:
        net = _Listening(port)
        net.acked = heard
        assert await Agent(SETTINGS, plan, store, net, SystemClock(), SystemRandomness()).run()

    with _broker(tmp_path) as broker:
        config = tmp_path / "ingest.toml"
        config.write_text(
            f'log = "{tmp_path / "log"}"\nbroker = "{broker.address}"\n'
            f'[flows.readings]\ndevices = ["{SETTINGS.device}"]\n'
            f'channels = {{ readings = ["{SETTINGS.device}"] }}\n'
        )
        with _beside("-m", "geartrain_cloud.ingest.main", "--config", str(config)):
            asyncio.run(run(broker.port))
    took, upto = [], 0
    for at_s, seq in heard:
        count = store.upto.get(seq, 0)
        took += [(at_s - ticks.began - n / A_SECOND) * 1_000 for n in range(upto, count)]
        upto = max(upto, count)
    assert upto == ticks.total
    found = statistics.quantiles(took[1:], n=100)
    contenders = {
        "p50": lambda: found[49],
        "p95": lambda: found[94],
        "p99": lambda: found[98],
        "asked for": lambda: 50.0,
    }
    name = f"sensor to ack over {broker.kind}, 10,000 records/s (less is better)"
    work = Work(name, "ms", contenders, "asked for", goals={"p99": {"asked for": 1.0}})
    work.notes.append(f"an fsync on this disk: {fsync_us(tmp_path):.0f} us")
    assert len(work.run(rounds=1)) == len(contenders)
