"""The sender: what waits in the outbox goes to its devices, again and again until they have acked it.

Between the outbox and the broker. Guarantees: a batch is sent only after the transaction that made it, in the
order of its seq; what devices answer goes to `answers`; a device that does not answer costs one hello now and
then. All that is under way is bounded by the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from geartrain.errors import NetError
from geartrain.ports import Clock, Connection, Net, Randomness
from geartrain.ports.buggify import buggify
from geartrain.wire.codec import encode_envelope
from geartrain.wire.topics import downack_filter, flow_down_topic
from geartrain_cloud.downlink.answers import Answers
from geartrain_cloud.downlink.sealing import envelope_of, gap_for, hello, is_intact
from geartrain_cloud.downlink.store import OutboxStore
from geartrain_cloud.downlink.ways import SenderSettings, Way, Ways

_LOG = logging.getLogger("geartrain.down")


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
        self._ways = Ways(flow, store, clock, randomness, self._settings, totals or {})
        self._answers = Answers(self._ways)
        self._lock = asyncio.Lock()  # around all that changes a way, since each change awaits the store
        self._stopping = asyncio.Event()
        self.connected, self._heard = False, 0

    def stop(self) -> None:
        """End; what is not acked stays in the outbox."""
        self._stopping.set()

    @property
    def waiting(self) -> dict[str, int]:
        """Batches that each device has not acked, of devices that have some."""
        return {
            d: w.lane.last_seq - w.lane.acked_seq
            for d, w in self._ways.by_device.items()
            if w.lane.last_seq > w.lane.acked_seq
        }

    @property
    def counters(self) -> dict[str, int]:
        """What was counted, in former lives too."""
        return self._ways.counters

    async def run(self) -> None:
        """Send until `stop`; raises `OutboxError`. The store is open."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._poll()), group.create_task(self._stay_connected())]
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
        await self._ways.keep_counters()

    # From the outbox

    async def _poll(self) -> None:
        while True:
            async with self._lock:
                for lane in await self._store.changed():
                    self._ways.look_at(lane)
            await self._ways.keep_counters()
            await self._clock.sleep(self._settings.poll_ms / 1_000)

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
            self._ways.count("connections_lost")
            await self._clock.sleep(self._randomness.uniform(0, pause_ms) / 1_000)

    async def _session(self) -> None:
        client_id = f"gear-down-{self._flow}-{self._randomness.token(4).hex()}"
        async with self._net.connect(client_id) as connection:
            await connection.subscribe(downack_filter(self._flow))
            self.connected = True
            self._ways.connected()
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
                self._ways.count("subscribed_again")

    async def _send(self, connection: Connection) -> None:
        while True:
            for way in await self._ways.ready():
                async with self._lock:
                    await self._serve(connection, way)

    async def _serve(self, connection: Connection, way: Way) -> None:
        """Send what there is to send to one device now."""
        lane, now_s = way.lane, self._clock.monotonic_s()
        if lane.last_seq <= lane.acked_seq:
            return
        topic = flow_down_topic(lane.device, self._flow)
        if not way.is_open:
            if now_s >= way.due_s:
                self._put_off(way, now_s)
                self._ways.count("hellos_sent")
                await connection.publish(topic, encode_envelope(hello(self._flow, lane)))
            return
        settings = self._settings
        while way.sent < lane.last_seq and len(way.under_way) < settings.window:
            if way.under_way and sum(size for _, size, _ in way.under_way) >= settings.window_bytes:
                break
            found = await self._store.read(lane.device, way.sent, 1)
            if not found or found[0].seq != way.sent + 1:
                self._ways.alarm(f"the outbox has lost batch {way.sent + 1} for device {lane.device}")
                await self._ways.begin_anew(way, lane.ordinal + 1)
                return
            batch = found[0]
            if not is_intact(way.sent_digest, batch):
                self._ways.count("batches_damaged")
                self._ways.count("rows_damaged", batch.count)
                self._ways.alarm(
                    f"batch {batch.seq} for device {lane.device} was damaged on the disk: {batch.count} rows "
                    "are lost"
                )
                batch = gap_for(self._flow, lane, batch)
                await self._store.replace(lane.device, batch)
            self._ways.count("batches_sent")
            way.under_way.append((batch.seq, batch.size, batch.digest))
            way.sent, way.sent_digest = batch.seq, batch.digest
            if way.due_s < now_s:
                way.due_s = now_s + way.pause_s
            await connection.publish(topic, encode_envelope(envelope_of(lane, batch)))

    def _put_off(self, way: Way, now_s: float) -> None:
        """Wait longer for a device each time that it does not answer."""
        way.due_s = now_s + way.pause_s * self._randomness.uniform(0.5, 1)
        way.pause_s = min(way.pause_s * 2, self._settings.resend_ms_max / 1_000)

    async def _watch(self) -> None:
        """Ask those again that have not answered for too long."""
        while True:
            await self._clock.sleep(self._settings.resend_ms / 4_000)
            now_s = self._clock.monotonic_s()
            for device, way in self._ways.by_device.items():
                if way.lane.last_seq <= way.lane.acked_seq:
                    continue
                late = now_s >= way.due_s or buggify("resend down at once", 0.1)
                if way.is_open and way.under_way and late:
                    self._ways.count("resends")
                    way.is_open, way.due_s = False, -1.0
                    self._ways.wake(device)
                elif not way.is_open and late:
                    self._ways.wake(device)

    # From the devices

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            self._heard += 1
            found = self._answers.decoded(incoming)
            if found is not None:
                async with self._lock:
                    await self._answers.take(*found)
        raise NetError("the connection has ended")


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
