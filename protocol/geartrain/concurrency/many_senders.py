"""Many senders over one connection: one for each device, in groups that come and go.

Between state machines without I/O and the broker. The outbox of each app is a group, and so are the control
lanes of all devices. Guarantees: a group that waits for its store holds up no other, and its errors are its
own. A sender whose timer is due is served within a tick. What is heard waits in an inbox of bounded size;
what does not fit is counted and left, for every answer is asked for again. A broker that has forgotten a
subscription is asked again after a silence.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from geartrain.concurrency.client_id import client_id
from geartrain.concurrency.connecting import Backoff, Connector, broken
from geartrain.concurrency.shield import shield
from geartrain.errors import NetError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness

INBOX_BYTES_MAX = 16 << 20
"""Of what was heard for one group and is not taken yet."""
_INCOMING_BYTES = 1_000
"""What an empty answer is counted as."""


class Machine(Protocol):
    """The sender of one device, as far as all kinds have it in common."""

    def connected(self, now_s: float) -> None:
        """A connection was made, and answers are listened to."""
        ...

    def disconnected(self) -> None:
        """The connection has ended."""
        ...


M = TypeVar("M", bound=Machine)
A = TypeVar("A")


class Link:
    """One life of a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.ended = connection, asyncio.Event()
        self._broken = asyncio.Event()
        self._error = NetError("the connection has ended")

    def broke(self, error: NetError | None) -> None:
        """Have it end: one who uses it has found it broken."""
        if error is not None and not self._broken.is_set():
            self._error = error
        self._broken.set()

    async def watch(self) -> None:
        """Raise `NetError` once somebody has found it broken."""
        await self._broken.wait()
        raise self._error

    async def over(self) -> None:
        """Raise `NetError` once it has ended."""
        await self.ended.wait()
        raise NetError("the connection has ended")


class SharedConnection:
    """A connection that many groups use; `run` ends when it is cancelled."""

    def __init__(
        self,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        backoff: Backoff,
        name: str,
        group_of: Callable[[str], str],
        lost: Callable[[str], None],
    ) -> None:
        """`name`: what its client ids begin with; `group_of`: the name of the group that a topic is for (""
        for none); `lost`: hears why connections ended, the same reason seldom.
        """
        self._net, self._randomness, self._name = net, randomness, name
        self._group_of, self._heard_lost = group_of, lost
        self._connector = Connector(clock, randomness, backoff)
        self._groups: dict[str, SenderGroup[Machine, object]] = {}
        self._link: Link | None = None
        self._made = asyncio.Event()
        self.counters = {"connections_lost": 0}

    @property
    def is_connected(self) -> bool:
        """Whether the broker is there and was subscribed to."""
        return self._connector.is_connected

    async def run(self) -> None:
        """Stay connected."""
        await self._connector.stay(self._session, self._lost)

    def _lost(self, error: NetError) -> None:
        self.counters["connections_lost"] += 1
        if news := self._connector.news(error):
            self._heard_lost(news)

    async def _session(self) -> None:
        own_id = client_id(self._name, self._randomness.token(4).hex())
        async with self._net.connect(own_id) as connection:
            link = self._link = Link(connection)
            self._made.set()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(link.watch())
                    group.create_task(self._receive(connection))
            finally:
                self._link = None
                self._made.clear()
                link.ended.set()

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            group = self._groups.get(self._group_of(incoming.topic))
            if group is not None:
                group.hear(incoming)
        raise NetError("the connection has ended")

    # What groups use

    async def link(self) -> Link:
        """The connection, once it is there."""
        while self._link is None:
            await self._made.wait()
        return self._link

    def subscribed(self) -> None:
        """A group has subscribed: the broker takes us."""
        self._connector.is_connected = True

    def succeeded(self) -> None:
        """A device has answered: the next pause before a connection is a short one."""
        self._connector.succeeded()

    def join(self, name: str, group: SenderGroup[Machine, object]) -> None:
        """Have the group hear what is for it."""
        self._groups[name] = group

    def leave(self, name: str) -> None:
        """Nothing more is for the group."""
        self._groups.pop(name, None)


class SenderGroup(ABC, Generic[M, A]):
    """The senders of one group; `run` is called once, `stop` ends it.

    M: the machine of a device; A: an answer of a device.
    """

    def __init__(
        self,
        name: str,
        topic_filter: str,
        shared: SharedConnection,
        clock: Clock,
        tick_s: float,
        silence_s: float,
    ) -> None:
        """`topic_filter`: where devices answer; `tick_s`: how exact timers are; `silence_s`: after so long in
        which nobody is heard it subscribes again; both in seconds.
        """
        self._name, self._topic_filter, self._shared, self._clock = name, topic_filter, shared, clock
        self._tick_s, self._silence_s = tick_s, silence_s
        self._senders: dict[str, M] = {}
        self._lock = asyncio.Lock()  # around all that changes a sender, since each change awaits the store
        self._ready: dict[str, None] = {}
        self._restless: dict[str, None] = {}  # those whose timers may run
        self._inbox, self._inbox_bytes = deque[Incoming](), 0
        self._work, self._came, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._heard = 0
        self.connected = False
        """Whether devices can be reached and heard."""
        self.counters: dict[str, int] = {}

    # What the groups differ in

    @abstractmethod
    async def _poll(self) -> None:
        """Look into the store, forever; what it raises ends the group."""

    @abstractmethod
    async def _serve(self, connection: Connection, device: str) -> None:
        """Send what there is to send to one device now."""

    @abstractmethod
    def _due_s(self, device: str, now_s: float) -> float | None:
        """When the timer of a device is due, None where none runs; what is due now is done."""

    @abstractmethod
    def _decoded(self, incoming: Incoming) -> tuple[str, A] | None:
        """The device that answers and what it says; None for an answer that is counted and left."""

    @abstractmethod
    async def _take(self, device: str, answer: A) -> None:
        """Take one answer of a device, and do what follows; under the lock."""

    async def _close(self) -> None:
        """What is to be done after `stop`."""

    # Its life

    def stop(self) -> None:
        """End; what is not sent stays in the store."""
        self._stopping.set()

    async def run(self) -> None:
        """Send until `stop`, over the connection that somebody runs; raises what the store raises."""
        self._shared.join(self._name, self)  # type: ignore[arg-type] # it hands over what it hears, no more
        try:
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(self._poll()), group.create_task(self._stay())]
                await self._stopping.wait()
                for work in works:
                    work.cancel()
        finally:
            self._shared.leave(self._name)
        await self._close()

    async def run_alone(self) -> None:
        """The same for a group that is the only one of its connection, which runs meanwhile."""
        async with asyncio.TaskGroup() as group:
            connection = group.create_task(self._shared.run())
            await self.run()
            connection.cancel()

    async def _stay(self) -> None:
        while True:
            link = await self._shared.link()
            link.broke(await broken(self._talk(link)))
            await link.ended.wait()

    async def _talk(self, link: Link) -> None:
        connection = link.connection
        self._inbox.clear()
        self._inbox_bytes = 0
        try:
            await connection.subscribe(self._topic_filter)
            self._shared.subscribed()
            self.connected = True
            for device, sender in self._senders.items():
                sender.connected(self._clock.monotonic_s())
                self._wake(device)
            async with asyncio.TaskGroup() as group:
                group.create_task(link.over())
                group.create_task(self._send(connection))
                group.create_task(self._listen())
                group.create_task(self._keep_time())
                group.create_task(self._listen_again(connection))
        finally:
            self.connected = False
            for sender in self._senders.values():
                sender.disconnected()

    def _wake(self, device: str) -> None:
        """Have a device be served."""
        self._ready[device] = None
        self._work.set()

    async def _send(self, connection: Connection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ready:
                device = next(iter(self._ready))
                del self._ready[device]
                await self._serve(connection, device)
                self._restless[device] = None

    async def _keep_time(self) -> None:
        """Have each sender's timer fire within a tick."""
        while True:
            await self._clock.sleep(self._tick_s)
            now_s = self._clock.monotonic_s()
            for device in list(self._restless):
                due_s = self._due_s(device, now_s)
                if due_s is None:
                    del self._restless[device]
                elif due_s <= now_s:
                    self._wake(device)

    async def _listen_again(self, connection: Connection) -> None:
        """Subscribe again after a long silence: a broker may forget what it was asked for."""
        while True:
            heard = self._heard
            await self._clock.sleep(self._silence_s)
            if self._heard == heard:
                await connection.subscribe(self._topic_filter)
                self._count("subscribed_again")

    # What is heard

    def hear(self, incoming: Incoming) -> None:
        """Keep what was heard until it is taken."""
        size = len(incoming.payload) + _INCOMING_BYTES
        if self._inbox_bytes + size > INBOX_BYTES_MAX:
            self._count("answers_dropped")
            return
        self._inbox.append(incoming)
        self._inbox_bytes += size
        self._came.set()

    async def _listen(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._inbox:
                incoming = self._inbox.popleft()
                self._inbox_bytes -= len(incoming.payload) + _INCOMING_BYTES
                self._heard += 1
                found = self._decoded(incoming)
                if found is not None:
                    self._shared.succeeded()
                    async with self._lock:
                        await shield(self._take(*found))

    def _count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount
