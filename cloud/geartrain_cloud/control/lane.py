"""The control lane in the data centre: tells devices what is wanted of them, and takes what they report.

Between the control store and the broker, beside every record's path. One `geartrain.control.DesiredSender`
for each device decides what is sent when; the store and the connection are here. Guarantees: those of that
machine, over any broker. A report is answered only when it is stored. With this gone, devices go on as they
were told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from geartrain.concurrency.connecting import DENIED_S, Backoff
from geartrain.concurrency.many_senders import SenderGroup, SharedConnection
from geartrain.control.sender import Cloned, DesiredSender, SenderPolicy, Standing, Store
from geartrain.control.states import Reported
from geartrain.errors import WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.printable import printable
from geartrain.wire.topics import desired_topic, parse_reported, reported_filter
from geartrain_cloud.control.clones import Clones

_LOG = logging.getLogger("geartrain.control")

_ALL = "control"
"""The one group of its connection."""


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
    backoff: Backoff = Backoff(0.25, 10.0, 1.0, DENIED_S)


class ControlLane(SenderGroup[DesiredSender, bytes]):
    """The lanes of all devices; `run_alone` ends when it is cancelled, and raises what the store raises."""

    def __init__(
        self,
        store: DesiredStore,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        settings: LaneSettings | None = None,
        clones: Clones | None = None,
    ) -> None:
        self.clones = clones or Clones(clock.monotonic_s)
        self._settings = settings or LaneSettings()
        shared = SharedConnection(
            net, clock, randomness, self._settings.backoff, "control", lambda topic: _ALL, self._lost
        )
        super().__init__(
            _ALL, reported_filter(), shared, clock, self._settings.tick_s, self._settings.silence_s
        )
        self._store, self._randomness = store, randomness

    def is_online(self, device: str) -> bool:
        """Whether a device was heard of late."""
        sender = self._senders.get(device)
        return sender is not None and sender.is_online(self._clock.monotonic_s())

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
            elif isinstance(event, Cloned):
                if self.clones.note(device):
                    _LOG.error("control: %s", self.clones.sentence(device))
            else:
                _LOG.error("control: %s", event.why)
                await self._store.refuse(device, event.why)
        for name, count in sender.counters.items():
            self._count(name, count)
        sender.counters.clear()
        self._wake(device)

    # The connection

    def _lost(self, why: str) -> None:
        _LOG.warning("control lane: %s", printable(why))

    async def _serve(self, connection: Connection, device: str) -> None:
        sender, topic = self._senders[device], desired_topic(device)
        while (payload := sender.next_to_send(self._clock.monotonic_s())) is not None:
            await connection.publish(topic, payload)

    def _due_s(self, device: str, now_s: float) -> float | None:
        return self._senders[device].timer(now_s)

    def _decoded(self, incoming: Incoming) -> tuple[str, bytes] | None:
        try:
            device = parse_reported(incoming.topic)
        except WireError as error:
            self._count("reports_not_decoded")
            _LOG.warning("control lane: %s", printable(str(error)))
            return None
        if device not in self._senders:
            self._count("reports_of_others")
            return None
        return device, incoming.payload

    async def _take(self, device: str, answer: bytes) -> None:
        self._senders[device].receive(answer, self._clock.monotonic_s())
        await self._do(device)
