"""The outbox's sender: it sends devices what waits for them, again and again until they have acked it.

Between the outbox and the broker. One `geartrain.delivery.Sender` for each device decides what is sent when;
the store, the connection and the alarms are here. Guarantees: a batch is sent only after the transaction that
made it. It is trimmed only on the device's own ack for this epoch with this digest. A device that is at
another place than the outbox says (its spool was lost, or the outbox was) gets a new epoch with everything
that it has not acked. A device that does not answer costs one hello now and then. The settings bound
everything that is under way.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from geartrain.concurrency.connecting import DENIED_S, Backoff
from geartrain.concurrency.many_senders import SenderGroup, SharedConnection
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
from geartrain.errors import WireError
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


def down_connection(
    net: Net, clock: Clock, randomness: Randomness, settings: SenderSettings | None = None
) -> SharedConnection:
    """The connection that the outboxes of all flows are sent over."""

    def lost(why: str) -> None:
        _LOG.warning("the way down: %s", why)

    longest_s = (settings or SenderSettings()).backoff_ms_max / 1_000
    backoff = Backoff(_BACKOFF_S, longest_s, denied_s=DENIED_S)
    return SharedConnection(net, clock, randomness, backoff, "down", _flow_of, lost)


def _flow_of(topic: str) -> str:
    """The flow that an answer is for; empty for none."""
    try:
        return parse_downack(topic)[1]
    except WireError:
        return ""


class OutboxSender(SenderGroup[Sender, Control]):
    """Sends the outbox of one flow; `run` is called once, `stop` ends it."""

    def __init__(
        self,
        flow: str,
        store: OutboxStore,
        shared: SharedConnection,
        clock: Clock,
        randomness: Randomness,
        settings: SenderSettings | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """`totals`: the counters of former lives."""
        self._settings = settings or SenderSettings()
        tick_s, silence_s = self._settings.resend_ms / 4_000, self._settings.silence_ms / 1_000
        super().__init__(flow, downack_filter(flow), shared, clock, tick_s, silence_s)
        self._flow, self._store, self._randomness = flow, store, randomness
        self.counters = dict(totals or {})  # what was counted, in former lives too
        self._counted = dict(self.counters)

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that each device has not acked, of devices that have some."""
        waiting = {device: one.last_seq - one.acked_seq for device, one in self._senders.items()}
        return {device: batches for device, batches in waiting.items() if batches > 0}

    async def _close(self) -> None:
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

    def _due_s(self, device: str, now_s: float) -> float | None:
        sender = self._senders[device]
        due_s = sender.get_timer()
        if due_s is not None and due_s <= now_s:
            sender.handle_timer(now_s)
        elif sender.is_waiting and buggify("resend down at once", 0.1):
            sender.resend(now_s)
            return now_s
        return due_s

    # What is sent

    async def _serve(self, connection: Connection, device: str) -> None:
        async with self._lock:  # what is read of the outbox belongs to what the machine says
            await self._send_all(connection, device)

    async def _send_all(self, connection: Connection, device: str) -> None:
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

    def _decoded(self, incoming: Incoming) -> tuple[str, Control] | None:
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

    async def _take(self, device: str, answer: Control) -> None:
        sender = self._senders[device]
        sender.receive_control(answer, self._clock.monotonic_s())
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
