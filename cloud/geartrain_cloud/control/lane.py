"""The control lane in the data centre: tells devices what is wanted of them, and takes what they report.

Between the control store and the broker, beside every record's path. One `geartrain.control.DesiredSender`
for each device decides what is sent when; the store and the connection are here. Guarantees: those of that
machine, over any broker. A report is answered only when it is stored. With this gone, devices go on as they
were told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from geartrain.concurrency.connecting import Backoff, Connector
from geartrain.concurrency.shield import shield
from geartrain.control.sender import DesiredSender, SenderPolicy, Standing, Store
from geartrain.control.states import Reported
from geartrain.errors import NetError, WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.printable import printable
from geartrain.wire.topics import desired_topic, parse_reported, reported_filter

_LOG = logging.getLogger("geartrain.control")


class DesiredStore(Protocol):
    """What the lane needs of the control store; what it raises ends the lane."""

    async def changed(self) -> Mapping[str, Standing]:
        """The devices of which something else is wanted than at the last call; all of them at the first."""
        ...

    async def store(self, report: Reported) -> None:
        """Make a report durable; it is newer than any before of its device."""
        ...

    async def refuse(self, device: str, why: str) -> None:
        """Note that nothing is sent to a device until a person accepts what is wanted of it, and why."""
        ...


class LaneSettings(msgspec.Struct, frozen=True):
    """poll_s: how often the store is looked into; tick_s: how exact timers are; silence_s: after so long in
    which nobody is heard it subscribes again; all in seconds.
    """

    poll_s: float = 0.2
    tick_s: float = 0.25
    silence_s: float = 90.0
    sender: SenderPolicy = msgspec.field(default_factory=SenderPolicy)
    backoff: Backoff = Backoff(0.25, 10.0, 1.0)


class ControlLane:
    """The lanes of all devices; `run` ends when it is cancelled."""

    def __init__(
        self,
        store: DesiredStore,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        settings: LaneSettings | None = None,
    ) -> None:
        self._store, self._net, self._clock, self._randomness = store, net, clock, randomness
        self._settings = settings or LaneSettings()
        self._senders: dict[str, DesiredSender] = {}
        self._restless: dict[str, None] = {}
        self._ready: dict[str, None] = {}
        self._work, self._lock = asyncio.Event(), asyncio.Lock()
        self._connector = Connector(clock, randomness, self._settings.backoff)
        self._heard = 0
        self.counters: dict[str, int] = {}

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self._connector.is_connected

    def is_online(self, device: str) -> bool:
        """Whether a device was heard of late."""
        sender = self._senders.get(device)
        return sender is not None and sender.is_online(self._clock.monotonic_s())

    async def run(self) -> None:
        """Serve all devices; raises what the store raises."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll())
            group.create_task(self._connector.stay(self._session, self._lost))

    # From the store

    async def _poll(self) -> None:
        while True:
            async with self._lock:
                for device, standing in (await self._store.changed()).items():
                    self._look_at(device, standing)
                    await self._do(device)
            await self._clock.sleep(self._settings.poll_s)

    def _look_at(self, device: str, standing: Standing) -> None:
        sender, now_s = self._senders.get(device), self._clock.monotonic_s()
        try:
            if sender is not None:
                sender.wanted(standing, now_s)
                return
            uniform = self._randomness.uniform
            sender = DesiredSender(device, standing, self._settings.sender, lambda: uniform(0.5, 1))
        except WireError as error:
            self._count("states_not_sendable")
            _LOG.error("the desired state of device %s cannot be sent: %s", device, error)
            return
        self._senders[device] = sender
        if self.connected:
            sender.connected(now_s)

    async def _do(self, device: str) -> None:
        """Do what the machine of a device says; under the lock."""
        sender = self._senders.get(device)
        if sender is None:
            return
        while (event := sender.next_event()) is not None:
            if isinstance(event, Store):
                await self._store.store(event.report)
                sender.stored(event.report, self._clock.monotonic_s())
            else:
                _LOG.error("control: %s", event.why)
                await self._store.refuse(device, event.why)
        for name, count in sender.counters.items():
            self._count(name, count)
        sender.counters.clear()
        self._wake(device)

    def _wake(self, device: str) -> None:
        self._ready[device] = self._restless[device] = None
        self._work.set()

    # The connection

    def _lost(self, error: NetError) -> None:
        self._count("connections_lost")
        _LOG.warning("control lane: %s", printable(str(error)))

    async def _session(self) -> None:
        try:
            async with self._net.connect(f"gear-control-{self._randomness.token(4).hex()}") as connection:
                await connection.subscribe(reported_filter())
                self._connector.is_connected = True
                for device, sender in self._senders.items():
                    sender.connected(self._clock.monotonic_s())
                    self._wake(device)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(connection))
                    group.create_task(self._receive(connection))
                    group.create_task(self._keep_time())
                    group.create_task(self._listen_again(connection))
        finally:
            for sender in self._senders.values():
                sender.disconnected()

    async def _send(self, connection: Connection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ready:
                device = next(iter(self._ready))
                del self._ready[device]
                sender, topic = self._senders[device], desired_topic(device)
                while (payload := sender.next_to_send(self._clock.monotonic_s())) is not None:
                    await connection.publish(topic, payload)

    async def _keep_time(self) -> None:
        """Have each device's timer fire within a tick."""
        while True:
            await self._clock.sleep(self._settings.tick_s)
            now_s = self._clock.monotonic_s()
            for device in list(self._restless):
                due_s = self._senders[device].timer(now_s)
                if due_s is None:
                    del self._restless[device]
                elif due_s <= now_s:
                    self._wake(device)

    async def _listen_again(self, connection: Connection) -> None:
        """Subscribe again after a long silence: a broker may forget what it was asked for."""
        while True:
            heard = self._heard
            await self._clock.sleep(self._settings.silence_s)
            if self._heard == heard:
                await connection.subscribe(reported_filter())

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            self._heard += 1
            device = self._sender_of(incoming)
            if device:
                self._connector.succeeded()
                async with self._lock:
                    self._senders[device].receive(incoming.payload, self._clock.monotonic_s())
                    await shield(self._do(device))
        raise NetError("the connection has ended")

    def _sender_of(self, incoming: Incoming) -> str:
        """The device that reports; empty for what is counted and left."""
        try:
            device = parse_reported(incoming.topic)
        except WireError as error:
            self._count("reports_not_decoded")
            _LOG.warning("control lane: %s", printable(str(error)))
            return ""
        if device not in self._senders:
            self._count("reports_of_others")
            return ""
        return device

    def _count(self, what: str, count: int = 1) -> None:
        self.counters[what] = self.counters.get(what, 0) + count
