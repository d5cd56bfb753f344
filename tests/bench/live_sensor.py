"""A sensor by the clock, its agent and ingest: what stands before Spark where latency is measured by hop.

The agent runs in a thread of this process, so that it can be seen when a batch is durable in its spool and
when its ack is heard; ingest is a process of its own, behind a real broker. All times are the system's clock.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from geartrain import Record, Source
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.planning import Plan
from geartrain.ports import Connection, Incoming, SpoolCommit
from geartrain.source import Batch, Split
from geartrain.wire.codec import decode_control
from geartrain.wire.envelope import Ack
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_edge.agent.agent import Agent
from geartrain_edge.spool.spool import SqliteSpool
from tests.bench.at_the_edge import SETTINGS
from tests.bench.harness import ROOT
from tests.rosters import document, put_flow


class Reading(Record):
    """One value of a sensor."""

    sensor: str
    value: float


@dataclass
class Ticks:
    """Reading n is born at `began` + n / rate; the first at once, the others once `go` is set, so that
    neither programs nor connections are waited for.
    """

    rate: int
    total: int
    go: threading.Event = field(default_factory=threading.Event)
    name: str = ""
    out_of_orderness_us: int = 0
    began: float = 0.0

    async def read(self, position: int, limit: int) -> Batch:
        """Those that are born."""
        if not self.began and position and self.go.is_set():
            self.began = time.time() - position / self.rate
        due = int((time.time() - self.began) * self.rate) if self.began else 1
        end = max(position, min(due, position + limit, self.total))
        numbers = range(position, end)
        values = [Reading(f"sensor-{n % 1_000:03d}", n % 80 / 4) for n in numbers]
        times = [1_700_000_000_000_000 + n * 1_000_000 // self.rate for n in numbers]
        return Batch(values, times, numbers, end, ended=end == self.total)

    async def close(self) -> None:
        """Nothing to release."""


class Ticking(Source[Reading]):
    """A sensor of so many readings a second by the clock, for a while."""

    bounded: ClassVar[bool] = True
    pausable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    ticks: Any = field(default=None)

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """The one split."""
        self.ticks.name = device
        return [self.ticks]


@dataclass
class Hops:
    """When the first `count` records were there, in the order of time; broker: its kind."""

    broker: str
    spooled: list[tuple[float, int]] = field(default_factory=list)
    acked: list[tuple[float, int]] = field(default_factory=list)
    upto: dict[int, int] = field(default_factory=dict)
    """By seq, how many records are in all batches up to it."""


class _Spool(SqliteSpool):
    def __init__(self, path: Path, hops: Hops) -> None:
        super().__init__(path)
        self._hops, self._count = hops, 0

    async def commit(self, change: SpoolCommit) -> None:
        """Note what is durable, and when."""
        await super().commit(change)
        for batch in change.batches:
            self._count += batch.count
            self._hops.upto[batch.seq] = self._count
        self._hops.spooled.append((time.time(), self._count))


class _Net:
    def __init__(self, port: int, hops: Hops) -> None:
        self._net, self._hops = AiomqttNet("127.0.0.1", port), hops

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[Connection]:
        """A connection as the agent has it."""
        async with self._net.connect(client_id) as connection:
            yield _Heard(connection, self._hops)


class _Heard:
    def __init__(self, connection: Connection, hops: Hops) -> None:
        self._connection, self._hops = connection, hops
        self.publish, self.subscribe = connection.publish, connection.subscribe

    async def incoming(self) -> AsyncIterator[Incoming]:
        """What comes, and the acks of it noted."""
        async for one in self._connection.incoming():
            if isinstance(control := decode_control(one.payload), Ack):
                self._hops.acked.append((time.time(), self._hops.upto.get(control.seq, 0)))
            yield one


@contextmanager
def sending(plan: Plan, folder: Path, channel: str) -> Iterator[Hops]:
    """Broker, ingest and agent at work for the block; the log is in `folder / "log"`."""
    broker = choose_broker("auto", folder)
    hops, flow = Hops(broker.kind), plan.graph.name
    device = SETTINGS.device
    config = folder / "ingest.toml"
    config.write_text(f'log = "{folder / "log"}"\nbroker = "{broker.address}"\n')
    sources = {step.id: (device,) for step in plan.graph.sources()}
    put_flow(folder / "log", flow, document(sources, {channel: tuple(sources)}))

    async def run() -> None:
        spool = _Spool(folder / "agent" / "spool.sqlite", hops)
        net = _Net(broker.port, hops)
        assert await Agent(SETTINGS, plan, spool, net, SystemClock(), SystemRandomness()).run()

    ingest = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(config)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(subprocess.Popen(broker.command, stderr=subprocess.DEVNULL))
        wait_until_ready(broker.host, broker.port, timeout_s=60)
        started.append(subprocess.Popen(ingest, cwd=ROOT, stderr=subprocess.DEVNULL))
        agent = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        agent.start()
        yield hops
        agent.join(timeout=60)
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
