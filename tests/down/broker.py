"""A broker in memory between agent, ingest and sender, that loses, doubles and delays what it is given."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from geartrain.errors import NetError
from geartrain.ports import Incoming
from geartrain.wire.codec import encode_control
from geartrain.wire.topics import ack_topic, parse_up
from tests.edge.network import NaiveIngest, Troubles

DELAYED_MAX = 30


class MemoryBroker:
    """`Net` for all of them. What is published on an `up` topic goes to `ingests`, by device."""

    def __init__(self, ingests: dict[str, NaiveIngest], troubles: Troubles | None = None) -> None:
        self.ingests, self.troubles = ingests, troubles or Troubles()
        self.random = random.Random(self.troubles.seed)
        self.live: list[MemoryConnection] = []
        self.counters: dict[str, int] = {}
        self.published: list[Incoming] = []
        self.swallow: Callable[[Incoming], bool] = lambda incoming: False
        self._delayed: list[Incoming] = []

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[MemoryConnection]:
        await asyncio.sleep(0)
        connection = MemoryConnection(self)
        self.live.append(connection)
        try:
            yield connection
        finally:
            self.live.remove(connection)

    def die(self) -> None:
        """Cut every connection and forget what was on its way."""
        self._delayed.clear()
        for connection in self.live:
            connection.cut()

    def take(self, incoming: Incoming) -> None:
        """What was published, with what chance does to it."""
        self.published.append(incoming)
        if self.swallow(incoming) or self._chance(self.troubles.lose):
            return
        self._pass(incoming)
        if self._chance(self.troubles.double):
            self._pass(self.random.choice(self.published[-DELAYED_MAX:]))

    def _pass(self, incoming: Incoming) -> None:
        if self._chance(self.troubles.delay) and len(self._delayed) < DELAYED_MAX:
            self._delayed.append(incoming)
            return
        arriving = [incoming]
        if self._delayed and self._chance(0.5):
            arriving += self._delayed
            self._delayed = []
            self.random.shuffle(arriving)
        for one in arriving:
            self._deliver(one)

    def _deliver(self, incoming: Incoming) -> None:
        if incoming.topic.endswith("/up"):
            device, flow = parse_up(incoming.topic)
            for control in self.ingests[device].take(incoming.payload):
                self._deliver(Incoming(ack_topic(device, flow), encode_control(control)))
            return
        for connection in self.live:
            connection.deliver(incoming)

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    def cuts(self) -> bool:
        """Whether chance cuts a connection now."""
        return self._chance(self.troubles.cut)


class MemoryConnection:
    """`Connection`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._inbox: asyncio.Queue[Incoming | None] = asyncio.Queue()
        self._filters: list[list[str]] = []
        self._is_cut = False

    def cut(self) -> None:
        """Break it."""
        self._is_cut = True
        self._inbox.put_nowait(None)

    def deliver(self, incoming: Incoming) -> None:
        """Hand over what it has subscribed to."""
        levels = incoming.topic.split("/")
        for each in self._filters:
            if len(each) == len(levels) and all(a in ("+", b) for a, b in zip(each, levels, strict=True)):
                self._inbox.put_nowait(incoming)
                return

    async def publish(self, topic: str, payload: bytes) -> None:
        await asyncio.sleep(0)
        if self._is_cut or self._broker.cuts():
            self.cut()
            raise NetError("the line was cut")
        self._broker.take(Incoming(topic, payload))

    async def subscribe(self, topic_filter: str) -> None:
        await asyncio.sleep(0)
        self._filters.append(topic_filter.split("/"))

    async def incoming(self) -> AsyncIterator[Incoming]:
        while (found := await self._inbox.get()) is not None:
            yield found
        raise NetError("the line was cut")
