"""The control lane on the device: a connection, the file of what was told, and the apps that are told.

Between the broker and the apps. Guarantees: those of `geartrain.control.receiver`, over any broker; what runs
is never touched because the platform or the broker is away. The simulator runs this class, too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from geartrain.concurrency.client_id import ID_BYTES, client_id
from geartrain.concurrency.connecting import DENIED_S, Backoff, Connector
from geartrain.concurrency.waiting import MovingTimer
from geartrain.control.receiver import DesiredReceiver, Keep, ReceiverPolicy
from geartrain.control.states import (
    INSTALLED_PROGRAM,
    SESSION_BYTES,
    AppReport,
    Kept,
    RunningProgram,
    SealedSecret,
    SecretReport,
    State,
)
from geartrain.errors import DiskError, NetError, TakenOverError
from geartrain.ports import Clock, Connection, Net, Randomness
from geartrain.printable import printable
from geartrain.wire.topics import desired_topic, reported_topic

_LOG = logging.getLogger("geartrain.parent")

BACKOFF = Backoff(first_s=0.25, longest_s=30.0, refused_s=1.0, denied_s=DENIED_S)
SILENCE_S = 90.0
"""After so long in which nothing is heard it subscribes again: a broker may forget what it was asked for."""


class KeptStore(Protocol):
    """Where a device keeps what it was told. Both raise `DiskError`."""

    async def load(self) -> Kept:
        """What was saved last, made durable; `Kept()` where nothing was."""
        ...

    async def save(self, kept: Kept) -> None:
        """Replace it; durable when this returns, and all or nothing after a crash."""
        ...


class Told(Protocol):
    """What is told a desired state, and says what became of it."""

    @property
    def changed(self) -> asyncio.Event:
        """Set when `reports` has become another."""
        ...

    def apply(self, state: State) -> None:
        """Have this from now on; returns at once."""
        ...

    def reports(self) -> tuple[AppReport, ...]:
        """The apps as they are now."""
        ...


class Programs(Protocol):
    """What is told which program the device is to run."""

    @property
    def why(self) -> str:
        """Why the one that is asked for does not run, empty where it does; `Told.changed` is set with it."""
        ...

    @property
    def went_back(self) -> bool:
        """Whether the one that is asked for was tried, in vain; `Told.changed` is set with it."""
        ...

    def want(self, program: str) -> None:
        """Have this one from now on: a hash, `INSTALLED_PROGRAM`, or empty for the one that runs; returns at
        once.
        """
        ...

    def heard(self) -> None:
        """The platform has taken a report of this program, which does what is wanted of it."""
        ...


class HeldSecrets(Protocol):
    """What is told which secrets the device is to have; `Told.changed` is set with what it says."""

    def want(self, secrets: tuple[SealedSecret, ...]) -> None:
        """Have these from now on, and no others that the platform has sent; returns at once."""
        ...

    def reports(self) -> tuple[SecretReport, ...]:
        """The secrets that are asked for, as they are now."""
        ...

    def certificate(self) -> bytes:
        """The certificate that they are sealed for, DER; empty where none are asked for."""
        ...


class InstalledProgram:
    """`Programs` of a device that takes none over the air."""

    def __init__(self) -> None:
        self.why, self.went_back = "", False

    def want(self, program: str) -> None:
        """As `Programs.want`."""
        is_other = program not in ("", INSTALLED_PROGRAM)
        self.why = "this device takes no program over the air: install it there" if is_other else ""

    def heard(self) -> None:
        """As `Programs.heard`."""


class DeviceLane:
    """One device's end of the control lane."""

    def __init__(
        self,
        device: str,
        net: Net,
        store: KeptStore,
        told: Told,
        clock: Clock,
        randomness: Randomness,
        program: RunningProgram | None = None,
        policy: ReceiverPolicy | None = None,
        programs: Programs | None = None,
        secrets: HeldSecrets | None = None,
    ) -> None:
        """program: what runs, which is reported; programs: what is told of another one; secrets: what is told
        of those that the platform sends, None where it can send none.
        """
        self._device, self._net, self._store, self._told = device, net, store, told
        self._clock, self._randomness = clock, randomness
        self._program, self._policy, self._programs = program, policy, programs or InstalledProgram()
        self._secrets = secrets
        # No text of a device tells it from one of the same name that another platform has at this broker.
        own_id = client_id("parent", device, randomness.token(ID_BYTES).hex())
        self._connector = Connector(clock, randomness, BACKOFF, own_id)
        self._timer, self._due = MovingTimer(clock), asyncio.Event()
        self._heard = 0
        self.counters: dict[str, int] = {}

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self._connector.is_connected

    async def run(self) -> None:
        """Take up what the disk holds, then follow the lane; raises `DiskError` where the disk cannot be
        used.
        """
        kept = await self._store.load()
        self._machine = DesiredReceiver(
            self._device, kept, self._program, self._policy, lambda: self._randomness.uniform(0.5, 1)
        )
        first = self._machine.next_event()
        if isinstance(first, Keep):
            await self._store.save(first.kept)
            self._machine.kept(self._clock.monotonic_s())
        self._due.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work())
            group.create_task(self._watch())
            group.create_task(self._connector.stay(self._session, self._lost))

    async def _work(self) -> None:
        """Do what the machine says, one after the other."""
        while True:
            await self._due.wait()
            self._due.clear()
            while (event := self._machine.next_event()) is not None:
                if isinstance(event, Keep):
                    await self._keep(event)
                else:
                    _LOG.info("device %s: applies desired state %d", self._device, event.state.serial)
                    self._told.apply(event.state)
                    self._programs.want(event.state.program)
                    if self._secrets is not None:
                        self._secrets.want(event.state.secrets)
                    self._look()
                    self._machine.applied(self._clock.monotonic_s())
            if self._machine.is_heard:
                self._programs.heard()
            self._moved()

    async def _keep(self, event: Keep) -> None:
        try:
            await self._store.save(event.kept)
        except DiskError as error:
            _LOG.error("device %s: its desired state cannot be kept: %s", self._device, error)
            self._machine.not_kept(str(error), self._clock.monotonic_s())
        else:
            self._machine.kept(self._clock.monotonic_s())

    async def _watch(self) -> None:
        while True:
            await self._told.changed.wait()
            self._told.changed.clear()
            self._look()
            self._moved()

    def _look(self) -> None:
        programs, now_s = self._programs, self._clock.monotonic_s()
        self._machine.changed(self._told.reports(), now_s, programs.why, went_back=programs.went_back)
        if self._secrets is not None:
            self._machine.holds(self._secrets.reports(), self._secrets.certificate(), now_s)

    def _moved(self) -> None:
        for name, count in self._machine.counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        self._machine.counters.clear()
        self._timer.look(self._machine.timer())

    # The connection

    def _lost(self, error: NetError) -> None:
        self._count("connections_lost")
        if isinstance(error, TakenOverError):
            self._count("sessions_taken_over")
        if news := self._connector.news(error):
            _LOG.warning("control lane of %s: %s", self._device, printable(news))

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    async def _session(self) -> None:
        try:
            async with self._net.connect(self._connector.client_id) as connection:
                await connection.subscribe(desired_topic(self._device))
                self._connector.is_connected = True
                self._machine.connected(self._randomness.token(SESSION_BYTES), self._clock.monotonic_s())
                self._moved()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(connection))
                    group.create_task(self._receive(connection))
                    group.create_task(self._listen_again(connection))
        finally:
            self._machine.disconnected()

    async def _send(self, connection: Connection) -> None:
        while True:
            payload = self._machine.next_to_send(self._clock.monotonic_s())
            if payload is not None:
                await connection.publish(reported_topic(self._device), payload)
            await self._timer.wait(self._machine.timer())

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            self._heard += 1
            self._connector.succeeded()
            self._machine.receive(incoming.payload, self._clock.monotonic_s())
            self._due.set()
        raise NetError("the connection has ended")

    async def _listen_again(self, connection: Connection) -> None:
        while True:
            heard = self._heard
            await self._clock.sleep(SILENCE_S)
            if self._heard == heard:
                await connection.subscribe(desired_topic(self._device))
