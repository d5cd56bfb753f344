"""The two ways in which a flow is measured on a device: the runtime as the agent drives it, and the agent.

`run_runtime` reads through the agent's intake (splits, origins, lateness, counters, watermarks) and takes the
changed state out at each commit, but writes nothing. `run_agent` is the agent itself over a spool on disk,
with a broker in memory that answers its hello, and acks if it is told to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from geartrain.adapters.system import SystemClock
from geartrain.planning import Plan
from geartrain.ports import Incoming, SpoolCommit
from geartrain.records.batch import Batch
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain.source import Batch as Read
from geartrain.source import Source, Split
from geartrain.testing import SeededRandomness
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_envelope, decode_header, encode_control
from geartrain.wire.envelope import Ack, BatchKind, Control, Welcome
from geartrain.wire.topics import ack_topic, parse_up
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.backlog import Counters
from geartrain_edge.spool.spool import SqliteSpool

SETTINGS = AgentSettings("bench")


class Given(Source[Any]):
    """One split of rows in memory: `make(row)` gives (event time in microseconds, record)."""

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    rows: Any = field(default_factory=list)
    make: Callable[[Sequence[Any]], tuple[list[int], list[Any]]] = field(default=lambda rows: ([], []))

    def open(self, device: str, step: str, out: type[Any]) -> Sequence[Split]:
        """The one split."""
        return [_GivenSplit(device, self.rows, self.make)]


@dataclass
class _GivenSplit:
    name: str
    rows: Sequence[Any]
    make: Callable[[Sequence[Any]], tuple[list[int], list[Any]]]
    out_of_orderness_us: int = 0

    async def read(self, position: int, limit: int) -> Read:
        """The next rows, made into records."""
        end = min(position + limit, len(self.rows))
        times, values = self.make(self.rows[position:end])
        return Read(values, times, range(position, end), end, ended=end == len(self.rows))

    async def close(self) -> None:
        """Nothing to release."""


def run_runtime(plan: Plan) -> dict[str, list[Any]]:
    """Run the edge's part of a plan to the end of its sources; returns the values of each output."""
    return asyncio.run(_run_runtime(plan))


async def _run_runtime(plan: Plan) -> dict[str, list[Any]]:
    intake = Intake(plan, SETTINGS.device, SETTINGS.read_max, SETTINGS.limits.names_max, SystemClock())
    intake.restore({})
    fragment, counters, out = Fragment(plan.graph, plan.edge), Counters({}), dict[str, list[Any]]()
    while not intake.ended:
        rows = 0
        while rows < SETTINGS.records_max and not intake.ended:
            rows += await intake.read(fragment, counters, SETTINGS.records_max - rows)
        for channel, batches in fragment.take().batches.items():
            _gather(out.setdefault(channel, []), batches)
        intake.moved()
        fragment.changes()
        counters.changes()
    fragment.close()
    return out


def _gather(values: list[Any], batches: Sequence[Batch]) -> None:
    for batch in batches:
        values += batch.values


class CountingSpool(SqliteSpool):
    """The spool on disk; `commits` counts its durable transactions, each of which is one fsync of the WAL."""

    commits = 0

    async def commit(self, change: SpoolCommit) -> None:
        """Commit and count."""
        self.commits += 1
        await super().commit(change)


class Answering:
    """`Net` in memory: answers hellos, and acks each batch where `acks`, else says nothing to any."""

    def __init__(self, *, acks: bool) -> None:
        self.counters: dict[str, int] = {}
        self.acks, self.batches, self.bytes = acks, 0, 0
        self.channels: dict[str, int] = {}
        self._inbox: deque[Incoming] = deque()
        self._arrived = asyncio.Event()

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[Answering]:
        """The connection, which is the net itself."""
        yield self

    async def subscribe(self, topic_filter: str) -> None:
        """Nobody else is there."""

    async def publish(self, topic: str, payload: bytes) -> None:
        """Take a batch, and answer it."""
        device, flow = parse_up(topic)
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        if header.kind is BatchKind.HELLO:
            self._answer(device, flow, Welcome(flow, header.epoch, {}, {}, 1))
        elif header.seq:
            self.batches, self.bytes = self.batches + 1, self.bytes + len(payload)
            self.channels[header.channel] = self.channels.get(header.channel, 0) + header.count
            if self.acks:
                self._answer(device, flow, Ack(flow, header.epoch, header.seq, envelope.digest, 1))
        await asyncio.sleep(0)

    def _answer(self, device: str, flow: str, control: Control) -> None:
        self._inbox.append(Incoming(ack_topic(device, flow), encode_control(control)))
        self._arrived.set()

    async def incoming(self) -> AsyncIterator[Incoming]:
        """The answers."""
        while True:
            while self._inbox:
                yield self._inbox.popleft()
            self._arrived.clear()
            await self._arrived.wait()


@dataclass(frozen=True, slots=True)
class AgentRun:
    """What a run of the agent left: durable transactions, and the counters of its rows."""

    commits: int
    counters: dict[str, int]


def run_agent(
    plan: Plan, folder: Path, settings: AgentSettings = SETTINGS, *, acks: bool = False
) -> AgentRun:
    """Run the agent until all of its sources' records are in the spool (and acked, with `acks`)."""
    return asyncio.run(_run_agent(plan, folder, settings, acks))


async def _run_agent(plan: Plan, folder: Path, settings: AgentSettings, acks: bool) -> AgentRun:
    store = CountingSpool(folder / "spool.sqlite")
    agent = Agent(settings, plan, store, Answering(acks=acks), SystemClock(), SeededRandomness(1))
    running = asyncio.create_task(agent.run())
    while not running.done():
        await asyncio.wait([running], timeout=0.01)
        if not acks and agent.status().state == "draining":
            agent.stop()
    await running
    return AgentRun(store.commits, agent.status().counters)


def spooled(plan: Plan, folder: Path) -> dict[str, list[Any]]:
    """The values of each channel in the spool that `run_agent` left in `folder`."""
    return asyncio.run(_spooled(plan, folder))


async def _spooled(plan: Plan, folder: Path) -> dict[str, list[Any]]:
    codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
    out: dict[str, list[Any]] = {channel: [] for channel in codecs}
    store = SqliteSpool(folder / "spool.sqlite")
    await store.open(SETTINGS.device, plan.graph.name, b"e" * 8)
    after = 0
    while batches := await store.read(after, 100):
        after = batches[-1].seq
        for batch in batches:
            header = decode_header(batch.header)
            if header.count:
                codec = codecs[header.channel]
                out[header.channel] += codec.from_columns(
                    decode_rows(codec.schema, header, batch.body).fields
                )
    await store.close()
    return out
