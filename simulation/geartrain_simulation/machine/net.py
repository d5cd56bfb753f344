"""One process's connection to the simulated broker: the `Net` that agent and ingest are given.

Guarantees: every call of a dead process is refused; a publish that returned promises nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from random import Random
from types import TracebackType
from typing import Self

from geartrain.ports import Incoming
from geartrain_simulation.machine.broker import Session, SimBroker
from geartrain_simulation.machine.trace import short_digest
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process


class SimConnection:
    """`geartrain.ports.Connection`."""

    def __init__(self, process: Process, broker: SimBroker, session: Session, random: Random) -> None:
        self._process, self._broker, self._session, self._random = process, broker, session, random

    async def publish(self, topic: str, payload: bytes) -> None:
        """Hand a publish to the broker; raises `NetError` once the connection is broken."""
        self._process.point("net.publish", f"{topic} {short_digest(payload)}")
        for observe in self._broker.observers:
            tell(observe, self._process.node.name, topic, payload)
        await self._process.pause(self._random, self._broker.faults)
        self._session.check()
        self._broker.accept(self._session, topic, payload)
        self._process.point("net.publish done", topic)

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe; raises `NetError` once the connection is broken."""
        self._process.point("net.subscribe", topic_filter)
        await self._process.pause(self._random, self._broker.faults)
        self._session.check()
        if topic_filter not in self._session.filters:
            self._session.filters.append(topic_filter)
            self._broker.subscribed(self._session, topic_filter)

    def incoming(self) -> AsyncIterator[Incoming]:
        """Received publishes, until `NetError`."""
        return _Arrivals(self._process, self._session)


class _Arrivals:
    """An iterator and not a generator, so that nothing is left to close when its process dies."""

    def __init__(self, process: Process, session: Session) -> None:
        self._process, self._session = process, session

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        incoming = await self._session.next()
        self._process.point("net.incoming", f"{incoming.topic} {short_digest(incoming.payload)}")
        return incoming


class _Opening:
    """The `async with` of one connection."""

    def __init__(self, process: Process, broker: SimBroker, client_id: str, random: Random) -> None:
        self._process, self._broker, self._client_id, self._random = process, broker, client_id, random
        self._session: Session | None = None

    async def __aenter__(self) -> SimConnection:
        self._process.point("net.connect", self._client_id)
        await self._process.pause(self._random, self._broker.faults)
        self._session = self._broker.open(self._process, self._client_id)
        return SimConnection(self._process, self._broker, self._session, self._random)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._broker.leave(self._session)


class SimNet:
    """`geartrain.ports.Net` of one process."""

    def __init__(self, process: Process, broker: SimBroker) -> None:
        self._process, self._broker = process, broker
        self._random = process.random("net")

    def connect(self, client_id: str) -> AbstractAsyncContextManager[SimConnection]:
        """Open a connection for the `async with` block; raises `NetError`."""
        return _Opening(self._process, self._broker, client_id, self._random)
