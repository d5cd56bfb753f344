"""The sender: what waits in the outbox goes to its devices, again and again until they have acked it.

Between the outbox and the broker. Guarantees: a batch is sent only after the transaction that made it, in the
order of its seq, and trimmed only on the device's own ack for this epoch with this digest; a device that
stands elsewhere (its spool was lost, or the outbox was) gets a new epoch with all that it has not acked. A
device that does not answer costs one hello now and then. All that is under way is bounded by the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from geartrain.errors import NetError, WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.ports.buggify import buggify
from geartrain.wire.codec import decode_control, encode_envelope
from geartrain.wire.envelope import EPOCH_BYTES, Ack, Control, Nack, NackReason, Offer, Welcome
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import downack_filter, flow_down_topic, parse_downack
from geartrain_cloud.down.sealing import envelope_of, gap_for, hello, is_intact
from geartrain_cloud.down.store import Lane, OutboxStore
from geartrain_cloud.ingest.alarm import plain

_LOG = logging.getLogger("geartrain.down")


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


class _Way:
    """One device: its lane, and how far it was sent."""

    def __init__(self, lane: Lane, resend_s: float) -> None:
        self.lane = lane
        self.is_open = False
        """Whether the device is known to stand in this epoch: nothing but a hello is sent before."""
        self.sent, self.sent_digest = lane.acked_seq, lane.acked_digest
        self.under_way: list[tuple[int, int, bytes]] = []
        """(seq, bytes, digest) of what was sent and not acked, oldest first."""
        self.due_s = self.rewound_s = -1.0
        self.pause_s = resend_s
        self.refusals = (0, 0)

    def rewind(self, seq: int) -> None:
        """Send again from behind `seq` on."""
        self.under_way = [one for one in self.under_way if one[0] <= seq]
        self.sent = seq
        self.sent_digest = self.under_way[-1][2] if self.under_way else self.lane.acked_digest

    def take(self, lane: Lane) -> None:
        """Stand in a new epoch, or in one that is announced anew."""
        if lane.epoch != self.lane.epoch:
            self.under_way, self.sent, self.sent_digest = [], lane.acked_seq, lane.acked_digest
        self.lane, self.is_open = lane, False


class Sender:
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
        self._ways: dict[str, _Way] = {}
        self._ready: dict[str, None] = {}
        self._work = asyncio.Event()
        self._lock = asyncio.Lock()  # around all that changes a way, since each change awaits the store
        self._stopping = asyncio.Event()
        self.counters: dict[str, int] = dict(totals or {})
        self._counted = dict(self.counters)
        self.connected, self._heard = False, 0

    def stop(self) -> None:
        """End; what is not acked stays in the outbox."""
        self._stopping.set()

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that each device has not acked, of devices that have some."""
        return {
            d: w.lane.last_seq - w.lane.acked_seq
            for d, w in self._ways.items()
            if w.lane.last_seq > w.lane.acked_seq
        }

    async def run(self) -> None:
        """Send until `stop`; raises `OutboxError`. The store is open."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._poll()), group.create_task(self._stay_connected())]
            await self._stopping.wait()
            for task in tasks:
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
        way = self._ways.get(lane.device)
        if way is None:
            way = self._ways[lane.device] = _Way(lane, self._settings.resend_ms / 1_000)
        elif lane.epoch != way.lane.epoch:  # the outbox was emptied under us
            way.take(lane)
        else:
            way.lane = replace(way.lane, last_seq=lane.last_seq, last_digest=lane.last_digest)
        self._wake(lane.device)

    async def _keep_counters(self) -> None:
        changed = {n: t for n, t in self.counters.items() if self._counted.get(n) != t}
        if changed:
            self._counted |= changed
            await self._store.count(changed)

    def _count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def _wake(self, device: str) -> None:
        self._ready[device] = None
        self._work.set()

    # To the broker

    async def _stay_connected(self) -> None:
        pause_ms = min(self._settings.resend_ms, self._settings.backoff_ms_max)
        while True:
            # In its own task: its task groups leave `cancelling()` raised, and ours must tell of our end.
            session = asyncio.create_task(self._session())
            try:
                await session
            except* NetError as group:
                _LOG.warning("the way down of flow %s: %s", self._flow, first_of(group))
            finally:
                self.connected = False
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the session may have put a NetError in its place
                raise asyncio.CancelledError
            self._count("connections_lost")
            await self._clock.sleep(self._randomness.uniform(0, pause_ms) / 1_000)

    async def _session(self) -> None:
        client_id = f"gear-down-{self._flow}-{self._randomness.token(4).hex()}"
        async with self._net.connect(client_id) as connection:
            await connection.subscribe(downack_filter(self._flow))
            self.connected = True
            for device, way in self._ways.items():
                way.is_open, way.due_s = False, -1.0
                way.pause_s = self._settings.resend_ms / 1_000
                self._wake(device)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(connection))
                group.create_task(self._receive(connection))
                group.create_task(self._watch())
                group.create_task(self._listen_again(connection))

    async def _listen_again(self, connection: Connection) -> None:
        """Subscribe again after a long silence: a broker may forget what it was asked for."""
        while True:
            heard = self._heard
            await self._clock.sleep(self._settings.silence_ms / 1_000)
            if self._heard == heard:
                await connection.subscribe(downack_filter(self._flow))
                self._count("subscribed_again")

    async def _send(self, connection: Connection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._ready:
                device = next(iter(self._ready))
                del self._ready[device]
                async with self._lock:
                    await self._serve(connection, self._ways[device])

    async def _serve(self, connection: Connection, way: _Way) -> None:
        """Send what there is to send to one device now."""
        lane, now_s = way.lane, self._clock.monotonic_s()
        if lane.last_seq <= lane.acked_seq:
            return
        topic = flow_down_topic(lane.device, self._flow)
        if not way.is_open:
            if now_s >= way.due_s:
                self._put_off(way, now_s)
                self._count("hellos_sent")
                await connection.publish(topic, encode_envelope(hello(self._flow, lane)))
            return
        settings = self._settings
        while way.sent < lane.last_seq and len(way.under_way) < settings.window:
            if way.under_way and sum(size for _, size, _ in way.under_way) >= settings.window_bytes:
                break
            found = await self._store.read(lane.device, way.sent, 1)
            if not found or found[0].seq != way.sent + 1:
                self._alarm(f"the outbox has lost batch {way.sent + 1} for device {lane.device}")
                await self._begin_anew(way, lane.ordinal + 1)
                return
            batch = found[0]
            if not is_intact(way.sent_digest, batch):
                self._count("batches_damaged")
                self._count("rows_damaged", batch.count)
                self._alarm(
                    f"batch {batch.seq} for device {lane.device} was damaged on the disk: {batch.count} rows "
                    "are lost"
                )
                batch = gap_for(self._flow, lane, batch)
                await self._store.replace(lane.device, batch)
            self._count("batches_sent")
            way.under_way.append((batch.seq, batch.size, batch.digest))
            way.sent, way.sent_digest = batch.seq, batch.digest
            if way.due_s < now_s:
                way.due_s = now_s + way.pause_s
            await connection.publish(topic, encode_envelope(envelope_of(lane, batch)))

    def _put_off(self, way: _Way, now_s: float) -> None:
        """Wait longer for a device each time that it does not answer."""
        way.due_s = now_s + way.pause_s * self._randomness.uniform(0.5, 1)
        way.pause_s = min(way.pause_s * 2, self._settings.resend_ms_max / 1_000)

    async def _watch(self) -> None:
        """Ask those again that have not answered for too long."""
        while True:
            await self._clock.sleep(self._settings.resend_ms / 4_000)
            now_s = self._clock.monotonic_s()
            for device, way in self._ways.items():
                if way.lane.last_seq <= way.lane.acked_seq:
                    continue
                late = now_s >= way.due_s or buggify("resend down at once", 0.1)
                if way.is_open and way.under_way and late:
                    self._count("resends")
                    way.is_open, way.due_s = False, -1.0
                    self._wake(device)
                elif not way.is_open and late:
                    self._wake(device)

    # From the devices

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            self._heard += 1
            found = self._decoded(incoming)
            if found is not None:
                async with self._lock:
                    await self._take(*found)
        raise NetError("the connection has ended")

    def _decoded(self, incoming: Incoming) -> tuple[_Way, Control] | None:
        try:
            device, flow = parse_downack(incoming.topic)
            if len(incoming.payload) > LIMITS.payload_bytes_max:
                raise WireError(f"an answer has {len(incoming.payload)} bytes")
            control = decode_control(incoming.payload)
        except WireError as error:
            self._count("answers_not_decoded")
            _LOG.warning("the way down of flow %s: %s", self._flow, plain(str(error)))
            return None
        way = self._ways.get(device)
        if way is None or flow != self._flow or control.flow != flow or isinstance(control, Welcome):
            self._count("answers_of_others")
            return None
        return way, control

    async def _take(self, way: _Way, control: Control) -> None:
        """Take one answer of a device."""
        way.pause_s = self._settings.resend_ms / 1_000
        if control.epoch != way.lane.epoch:
            self._count("answers_of_other_epochs")
            if not any(control.epoch):
                self._ask(way)  # a device that has just come, and has nothing yet
        elif isinstance(control, Ack):
            await self._on_ack(way, control)
        elif isinstance(control, Nack):
            await self._on_nack(way, control)
        elif isinstance(control, Offer) and control.ordinal > way.lane.ordinal:
            await self._on_offer(way, control)
        self._wake(way.lane.device)

    def _ask(self, way: _Way) -> None:
        """Say hello, at once, but not more often than a resend's quarter."""
        now_s = self._clock.monotonic_s()
        if now_s - way.rewound_s >= self._settings.resend_ms / 4_000:
            way.rewound_s, way.is_open, way.due_s = now_s, False, -1.0

    async def _on_ack(self, way: _Way, ack: Ack) -> None:
        lane = way.lane
        if ack.seq < lane.acked_seq:
            self._count("answers_stale")
            return
        if ack.seq == lane.acked_seq:
            self._stand_at(way, ack.seq)
            return
        digest = await self._digest_at(way, ack.seq)
        if digest != ack.digest:
            self._count("acks_refused")
            self._alarm(
                f"device {lane.device} acks another batch {ack.seq} than the outbox holds, which was lost or "
                "restored from a backup: it goes on in a new epoch"
            )
            await self._begin_anew(way, lane.ordinal + 1)
            return
        await self._store.trim(lane.device, lane.epoch, ack.seq, ack.digest)
        way.lane = replace(lane, acked_seq=ack.seq, acked_digest=ack.digest)
        way.under_way = [one for one in way.under_way if one[0] > ack.seq]
        if way.sent < ack.seq:
            way.sent, way.sent_digest = ack.seq, ack.digest
        way.is_open, way.refusals = True, (0, 0)
        way.due_s = self._clock.monotonic_s() + way.pause_s

    async def _digest_at(self, way: _Way, seq: int) -> bytes:
        """The running digest at a seq that is not trimmed, empty where there is none."""
        for sent, _, digest in way.under_way:
            if sent == seq:
                return digest
        found = await self._store.read(way.lane.device, seq - 1, 1)
        return found[0].digest if found and found[0].seq == seq else b""

    def _stand_at(self, way: _Way, seq: int) -> None:
        """The device has all up to `seq` and lacks what follows."""
        now_s = self._clock.monotonic_s()
        if not way.is_open or now_s - way.rewound_s >= self._settings.resend_ms / 4_000:
            way.is_open, way.rewound_s = True, now_s
            way.rewind(seq)
            way.due_s = now_s + way.pause_s

    async def _on_nack(self, way: _Way, nack: Nack) -> None:
        lane = way.lane
        self._count("nacks")
        if nack.reason is NackReason.CLOSED or nack.seq - 1 < lane.acked_seq:
            self._ask(way)
        elif nack.reason is NackReason.GAP:
            # What lies between the ack and this was received, and comes again if it is not acked.
            self._stand_at(
                way, min(nack.seq - 1, lane.last_seq) if self._was_sent(way, nack.seq - 1) else lane.acked_seq
            )
        elif nack.reason is NackReason.NEED_SCHEMA:
            self._count("schemas_refused")
            self._alarm(
                f"device {lane.device} runs another version of flow {self._flow}: run the same on both"
            )
            way.is_open, way.due_s = False, self._clock.monotonic_s() + self._settings.resend_ms_max / 1_000
        else:
            await self._on_digest_refused(way, nack)

    @staticmethod
    def _was_sent(way: _Way, seq: int) -> bool:
        return seq == way.lane.acked_seq or any(sent == seq for sent, _, _ in way.under_way)

    async def _on_digest_refused(self, way: _Way, nack: Nack) -> None:
        self._count("digests_refused")
        seq, times = way.refusals
        way.refusals = (nack.seq, times + 1 if seq == nack.seq else 1)
        if way.refusals[1] <= self._settings.digest_retries_max:
            way.rewind(way.lane.acked_seq)
            return
        way.refusals = (0, 0)
        self._alarm(
            f"device {way.lane.device} refuses the digest of batch {nack.seq}: it knows another history of "
            "this outbox, and goes on in a new epoch"
        )
        await self._begin_anew(way, way.lane.ordinal + 1)

    async def _on_offer(self, way: _Way, offer: Offer) -> None:
        """The device cannot go on in this epoch."""
        if way.lane.acked_seq == 0:  # it has never begun it: another ordinal will do
            way.take(await self._store.announce(way.lane.device, offer.ordinal))
            way.due_s = -1.0
            return
        self._alarm(
            f"device {way.lane.device} has lost what it had acked up to {way.lane.acked_seq}: its spool is "
            "gone or was restored from a backup; it goes on in a new epoch"
        )
        await self._begin_anew(way, offer.ordinal)

    async def _begin_anew(self, way: _Way, ordinal: int) -> None:
        self._count("epochs_minted")
        lane = await self._store.renew(way.lane.device, self._randomness.token(EPOCH_BYTES), ordinal)
        way.take(lane)
        way.due_s = -1.0
        self._wake(lane.device)

    def _alarm(self, sentence: str) -> None:
        self._count("alarms")
        _LOG.critical("ALARM: %s", plain(sentence))


def first_of(group: BaseException) -> BaseException:
    """The error behind a group of them."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def opened(store: OutboxStore) -> AsyncIterator[OutboxStore]:
    """`store`, open for the block."""
    try:
        await store.open()
        yield store
    finally:
        await store.close()
