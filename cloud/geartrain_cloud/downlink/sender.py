"""The outbox's sender: it sends devices what waits for them, again and again until they have acked it.

Between the outbox and the broker. One `geartrain.delivery.Sender` for each device decides what is sent when;
the store, the connection and the alarms are here. Guarantees: a batch is sent only after the transaction that
made it. It is trimmed only on the device's own ack for this epoch with this digest. A device that is at
another place than the outbox says (its spool was lost, or the outbox was) gets a new epoch with everything
that it has not acked. A device that does not answer costs one hello now and then. The settings bound
everything that is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from geartrain.concurrency.connecting import Backoff, Connector
from geartrain.concurrency.shield import shield
from geartrain.delivery.sender import Handshake, Sender, SenderPolicy, Standing
from geartrain.delivery.sender_events import (
    Acked,
    CompareAck,
    Doubt,
    Event,
    Examine,
    Renew,
    Renumbered,
    SchemasRefused,
    SendBatch,
    SendHello,
)
from geartrain.errors import NetError, WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.ports.buggify import buggify
from geartrain.printable import printable
from geartrain.wire.codec import decode_control, encode_envelope
from geartrain.wire.envelope import EPOCH_BYTES, Control, Welcome
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import downack_filter, flow_down_topic, parse_downack
from geartrain_cloud.downlink.sealing import envelope_of, gap_for, hello, is_intact
from geartrain_cloud.downlink.store import Lane, OutboxStore

_LOG = logging.getLogger("geartrain.down")

_BACKOFF_S = 0.25
_COUNTERS = {
    "acks_of_others": "answers_of_other_epochs",
    "acks_stale": "answers_stale",
    "ack_refused": "acks_refused",
}
"""What the sender's counters are called here, where that is another name."""


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How batches are sent.

    window, window_bytes: of one device, batches without an ack; resend_ms: after so long without an answer a
    device is asked again where it stands, doubling up to resend_ms_max; poll_ms: how often the outbox is
    looked into; backoff_ms_max: the longest pause before connecting again; silence_ms: after so long without
    an answer of anybody it subscribes again; digest_retries_max: times that a
    device may refuse the digest of one batch before a new epoch begins.
    """

    window: int = 16
    window_bytes: int = 1 << 20
    resend_ms: int = 2_000
    resend_ms_max: int = 30_000
    poll_ms: int = 50
    backoff_ms_max: int = 10_000
    silence_ms: int = 30_000
    digest_retries_max: int = 3

    @property
    def policy(self) -> SenderPolicy:
        """The policy of the sender of one device."""
        return SenderPolicy(
            self.window,
            self.window_bytes,
            self.resend_ms / 1_000,
            self.resend_ms_max / 1_000,
            digest_retries_max=self.digest_retries_max,
            handshake=Handshake.CONNECTION,
            has_schemas=False,
        )


class OutboxSender:
    """Sends the outbox of one flow; `run` is called once, `stop` ends it."""

    def __init__(
        self,
        flow: str,
        store: OutboxStore,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        settings: SenderSettings | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """`totals`: the counters of former lives."""
        self._flow, self._store, self._net, self._clock = flow, store, net, clock
        self._randomness, self._settings = randomness, settings or SenderSettings()
        self._senders: dict[str, Sender] = {}
        self._lock = asyncio.Lock()  # around all that changes a sender, since each change awaits the store
        self._ready: dict[str, None] = {}
        self._work, self._stopping = asyncio.Event(), asyncio.Event()
        self._connector = Connector(clock, randomness, self._backoff())
        self._heard = 0
        self.counters: dict[str, int] = dict(totals or {})
        """What was counted, in former lives too."""
        self._counted = dict(self.counters)

    def _backoff(self) -> Backoff:
        return Backoff(_BACKOFF_S, self._settings.backoff_ms_max / 1_000)

    def stop(self) -> None:
        """End; what is not acked stays in the outbox."""
        self._stopping.set()

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self._connector.is_connected

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that each device has not acked, of devices that have some."""
        waiting = {device: one.last_seq - one.acked_seq for device, one in self._senders.items()}
        return {device: batches for device, batches in waiting.items() if batches > 0}

    async def run(self) -> None:
        """Send until `stop`; raises `OutboxError`. The store is open."""
        async with asyncio.TaskGroup() as group:
            polls = group.create_task(self._poll())
            session = group.create_task(self._connector.stay(self._session, self._lost))
            await self._stopping.wait()
            for task in (polls, session):
                task.cancel()
        await self._keep_counters()

    # From the outbox

    async def _poll(self) -> None:
        while True:
            async with self._lock:
                for lane in await self._store.changed():
                    self._look_at(lane)
            await self._keep_counters()
            await self._clock.sleep(self._settings.poll_ms / 1_000)

    def _look_at(self, lane: Lane) -> None:
        """Take what the outbox now says of a device."""
        sender, now_s = self._senders.get(lane.device), self._clock.monotonic_s()
        if sender is None:
            jitter = self._randomness.uniform
            sender = Sender(self._settings.policy, self._flow, _standing(lane), jitter=lambda: jitter(0.5, 1))
            self._senders[lane.device] = sender
            if self.connected:
                sender.connected(now_s)
        elif lane.epoch != sender.epoch:  # the outbox was emptied under us
            sender.renewed(_standing(lane), now_s)
        else:
            sender.committed(lane.last_seq)
        self._wake(lane.device)

    def _lane(self, device: str) -> Lane:
        one = self._senders[device]
        return Lane(device, one.epoch, one.ordinal, one.last_seq, b"", one.acked_seq, one.acked_digest)

    def _wake(self, device: str) -> None:
        self._ready[device] = None
        self._work.set()

    # The connection

    def _lost(self, error: NetError) -> None:
        self._count("connections_lost")
        _LOG.warning("the way down of flow %s: %s", self._flow, error)

    async def _session(self) -> None:
        client_id = f"gear-down-{self._flow}-{self._randomness.token(4).hex()}"
        try:
            async with self._net.connect(client_id) as connection:
                await connection.subscribe(downack_filter(self._flow))
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

    async def _listen_again(self, connection: Connection) -> None:
        """Subscribe again after a long silence: a broker may forget what it was asked for."""
        while True:
            heard = self._heard
            await self._clock.sleep(self._settings.silence_ms / 1_000)
            if self._heard == heard:
                await connection.subscribe(downack_filter(self._flow))
                self._count("subscribed_again")

    async def _keep_time(self) -> None:
        """Have each sender's timer fire, within a quarter of the resend timer."""
        while True:
            await self._clock.sleep(self._settings.resend_ms / 4_000)
            now_s = self._clock.monotonic_s()
            for device, sender in self._senders.items():
                due_s = sender.get_timer()
                if due_s is not None and due_s <= now_s:
                    sender.handle_timer(now_s)
                    self._wake(device)
                elif sender.is_waiting and buggify("resend down at once", 0.1):
                    sender.resend(now_s)
                    self._wake(device)

    # What is sent

    async def _send(self, connection: Connection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ready:
                device = next(iter(self._ready))
                del self._ready[device]
                async with self._lock:
                    await self._serve(connection, device)

    async def _serve(self, connection: Connection, device: str) -> None:
        """Send what there is to send to one device now."""
        sender, topic = self._senders[device], flow_down_topic(device, self._flow)
        while (sending := sender.next_to_send(self._clock.monotonic_s())) is not None:
            if isinstance(sending, SendHello):
                await connection.publish(topic, encode_envelope(hello(self._flow, self._lane(device))))
            elif not isinstance(sending, SendBatch) or sending.gap_only:
                break  # the window is full
            elif not await self._send_batch(connection, device, sending):
                break
        self._take_counters(sender)

    async def _send_batch(self, connection: Connection, device: str, sending: SendBatch) -> bool:
        """Send the next batch; False where the outbox has lost it."""
        sender, seq = self._senders[device], sending.after_seq + 1
        found = await self._store.read(device, sending.after_seq, 1)
        if not found or found[0].seq != seq:
            self._alarm(f"the outbox has lost batch {seq} for device {device}")
            await shield(self._begin_anew(device, sender.ordinal + 1))
            return False
        batch = found[0]
        if not is_intact(sender.digest_at(sending.after_seq), batch):
            self._count("batches_damaged")
            self._count("rows_damaged", batch.count)
            self._alarm(
                f"batch {seq} for device {device} was damaged on the disk: {batch.count} rows are lost"
            )
            batch = gap_for(self._flow, self._lane(device), batch)
            await self._store.replace(device, batch)
        if sender.sent(sending, seq, batch.size, batch.digest, self._clock.monotonic_s()):
            self._count("batches_sent")
            await connection.publish(
                flow_down_topic(device, self._flow), encode_envelope(envelope_of(self._lane(device), batch))
            )
            sender.published(seq, self._clock.monotonic_s())
        return True

    # What is heard

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            self._heard += 1
            found = self._decoded(incoming)
            if found is not None:
                self._connector.succeeded()
                async with self._lock:
                    await shield(self._take(*found))
        raise NetError("the connection has ended")

    def _decoded(self, incoming: Incoming) -> tuple[str, Control] | None:
        """The device that answers and what it says; None for an answer that is counted and left."""
        try:
            device, flow = parse_downack(incoming.topic)
            if len(incoming.payload) > LIMITS.payload_bytes_max:
                raise WireError(f"an answer has {len(incoming.payload)} bytes")
            control = decode_control(incoming.payload)
        except WireError as error:
            self._count("answers_not_decoded")
            _LOG.warning("the way down of flow %s: %s", self._flow, printable(str(error)))
            return None
        is_known = device in self._senders and flow == self._flow == control.flow
        if not is_known or isinstance(control, Welcome):
            self._count("answers_of_others")
            return None
        return device, control

    async def _take(self, device: str, control: Control) -> None:
        """Take one answer of a device, and do what follows; under the lock."""
        sender = self._senders[device]
        sender.receive_control(control, self._clock.monotonic_s())
        while (event := sender.next_event()) is not None:
            await self._do(device, sender, event)
        self._take_counters(sender)
        self._wake(device)

    async def _do(self, device: str, sender: Sender, event: Event) -> None:
        if isinstance(event, Acked):
            await self._store.trim(device, sender.epoch, event.seq, event.digest)
        elif isinstance(event, CompareAck):
            found = await self._store.read(device, event.ack.seq - 1, 1)
            seq, digest = (found[0].seq, found[0].digest) if found else (0, b"")
            is_there = seq == event.ack.seq  # no gap of the outbox stands for several
            sender.compared(event.ack, seq if is_there else 0, digest, self._clock.monotonic_s())
        elif isinstance(event, Examine):
            sender.intact(event)  # every reading of the outbox looks at the digest
        elif isinstance(event, Renumbered):
            await self._store.announce(device, event.ordinal)
        elif isinstance(event, SchemasRefused):
            self._alarm(f"device {device} runs another version of flow {self._flow}: run the same on both")
        elif isinstance(event, Renew):
            self._alarm(_why(device, event))
            await self._begin_anew(device, event.ordinal)

    async def _begin_anew(self, device: str, ordinal: int) -> None:
        """Begin a new epoch with all that a device has not acked."""
        self._count("epochs_minted")
        lane = await self._store.renew(device, self._randomness.token(EPOCH_BYTES), ordinal)
        self._senders[device].renewed(_standing(lane), self._clock.monotonic_s())
        self._wake(device)

    # What is counted and said

    def _take_counters(self, sender: Sender) -> None:
        for name, count in sender.counters.items():
            self._count(_COUNTERS.get(name, name), count)
        sender.counters.clear()

    def _count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    async def _keep_counters(self) -> None:
        """Keep what was counted since the last call."""
        changed = {n: t for n, t in self.counters.items() if self._counted.get(n) != t}
        if changed:
            self._counted |= changed
            await self._store.count(changed)

    def _alarm(self, sentence: str) -> None:
        """Say what somebody has to see to."""
        self._count("alarms")
        _LOG.critical("ALARM: %s", printable(sentence))


def _standing(lane: Lane) -> Standing:
    return Standing(lane.epoch, lane.acked_seq, lane.acked_digest, lane.last_seq, lane.ordinal)


def _why(device: str, event: Renew) -> str:
    """The alarm for an epoch that cannot go on."""
    if event.doubt is Doubt.RECEIVER_LOST:
        return (
            f"device {device} has lost what it had acked up to {event.seq}: its spool is gone or was "
            "restored from a backup; it goes on in a new epoch"
        )
    if event.doubt is Doubt.DIGEST_REFUSED:
        return (
            f"device {device} refuses the digest of batch {event.seq}: it knows another history of this "
            "outbox, and goes on in a new epoch"
        )
    return (
        f"device {device} acks another batch {event.seq} than the outbox holds, which was lost or restored "
        "from a backup: it goes on in a new epoch"
    )


@asynccontextmanager
async def opened(store: OutboxStore) -> AsyncIterator[OutboxStore]:
    """`store`, open for the block."""
    try:
        await store.open()
        yield store
    finally:
        await store.close()
