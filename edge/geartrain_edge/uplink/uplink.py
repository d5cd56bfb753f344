"""The uplink: sends committed batches until ingest has acked them, whatever the network does.

Between the spool and the broker. `geartrain.delivery.Sender` decides what is sent when; here are the
connection, the spool and the alarms. Guarantees (I3): a batch is trimmed only after ingest's own ack for this
epoch with this spool's digest, never after a puback. When an ack shows another history, the agent begins a
new epoch; a second such ack within `flip_window_s` stops it. The settings bound all that waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from geartrain.concurrency.client_id import client_id
from geartrain.concurrency.connecting import Backoff, Connector
from geartrain.concurrency.shield import shield
from geartrain.concurrency.waiting import MovingTimer, first_done
from geartrain.delivery.sender import Sender, SenderPolicy, Standing
from geartrain.delivery.sender_events import (
    Acked,
    CompareAck,
    Doubt,
    Event,
    Examine,
    Held,
    ReadAgain,
    Renew,
    SendBatch,
    SendHello,
    Silent,
    Welcomed,
)
from geartrain.errors import NetError, TakenOverError, WireError
from geartrain.ports import (
    Clock,
    Connection,
    Incoming,
    Net,
    Randomness,
    Rewrite,
    SpoolCommit,
    SpooledBatch,
    SpoolStore,
    SpoolTip,
)
from geartrain.ports.buggify import buggify
from geartrain.wire.codec import decode_control, encode_envelope
from geartrain.wire.envelope import Envelope, Nack, NackReason, Welcome
from geartrain.wire.topics import ack_topic, up_topic
from geartrain_edge.errors import AlarmCode, AlarmError
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.spool.backlog import Backlog, Counters, Identity
from geartrain_edge.spool.gaps import by_channel, is_intact, replacement
from geartrain_edge.uplink.pace import Pace
from geartrain_edge.uplink.priority import Priority, Turn
from geartrain_edge.uplink.window import Window

_LOG = logging.getLogger("geartrain.uplink")


class Effects(msgspec.Struct, frozen=True):
    """The ports that the uplink uses."""

    store: SpoolStore
    net: Net
    clock: Clock
    randomness: Randomness


class Hooks(msgspec.Struct, frozen=True):
    """What the uplink has the agent do.

    renew: begin a new epoch, given the sentence that says why, or raise `AlarmError`; schemas: the flow's
    schemas as an unsequenced envelope; hello: the question that opens an epoch, given its ordinal; hear: take
    the answer.
    """

    renew: Callable[[str], Coroutine[Any, Any, None]]
    schemas: Callable[[], Envelope]
    hello: Callable[[int], Envelope]
    hear: Callable[[Welcome], None]


class Beside(Protocol):
    """What else goes over the same connection: the way down, and answers to questions."""

    @property
    def topic(self) -> str:
        """Where it listens, "" for nowhere."""
        ...

    def hear(self, payload: bytes) -> None:
        """Take what came there."""
        ...

    async def speak(self, connection: Connection) -> None:
        """Publish what it has to say, forever; raises `NetError`."""
        ...


class Uplink:
    """Runs until it is cancelled, or raises `AlarmError` or `SpoolError`."""

    _hooks: Hooks

    def __init__(
        self,
        settings: UplinkSettings,
        who: Identity,
        effects: Effects,
        backlog: Backlog,
        counters: Counters,
        turn: Turn | None = None,
        *,
        is_open: bool = True,
    ) -> None:
        """`turn`: among the flows of one agent, None where it has only this one; `is_open`: whether ingest is
        known to have opened this epoch.
        """
        self._settings, self._who, self._effects = settings, who, effects
        self._turn = turn or Priority().turn(who.flow, is_urgent=False)
        self._backlog, self._counters = backlog, counters
        self.beside: list[Beside] = []
        self.alarm = ""
        """What stopped the uplink for good, a sentence; empty while nothing did."""
        self.alarm_code = AlarmCode.OTHER_HISTORY
        """What `alarm` is about, where there is one."""
        self._window = Window(effects.store, backlog, settings.window, settings.window_bytes)
        standing = Standing(backlog.epoch, backlog.acked_seq, backlog.acked_digest, backlog.last_seq)
        self._sender = Sender(policy_of(settings), who.flow, standing, is_open=is_open)
        self._timer, self._pace = MovingTimer(effects.clock), Pace(settings.bytes_per_s_max)
        backoff = Backoff(
            settings.backoff_ms / 1_000,
            settings.backoff_ms_max / 1_000,
            settings.refused_ms_max / 1_000,
            settings.denied_ms_max / 1_000,
        )
        self._connector = Connector(effects.clock, effects.randomness, backoff)
        self._topic, self._ack_topic = up_topic(who.device, who.flow), ack_topic(who.device, who.flow)
        self._trim_due, self._freed_bytes = asyncio.Event(), 0
        self._held: dict[str, int] = {}

    # What the agent asks and says

    @property
    def connected(self) -> bool:
        """Whether there is a connection that can be used."""
        return self._connector.is_connected

    @property
    def acked_seq(self) -> int:
        """The last acked batch, which may not be trimmed yet."""
        return self._sender.acked_seq

    @property
    def acked_digest(self) -> bytes:
        """The running digest after it."""
        return self._sender.acked_digest

    @property
    def held(self) -> dict[str, int]:
        """Channels of the batch that ingest leaves here, with its rows; none where it announces schemas."""
        return dict(self._held) if self._sender.held_seq else {}

    @property
    def held_why(self) -> str:
        """Why nothing is taken, "" where something is."""
        if not self._sender.held_seq:
            return ""
        what = f"rows of channel {', '.join(self._held)}" if self._held else "schemas"
        return (
            f"ingest was told of another flow than this device runs: it does not take the {what}, which stay "
            "in the spool, and all behind them"
        )

    @property
    def denied_why(self) -> str:
        """What to do where the broker denies this device a connection, "" where it does not."""
        denied = self._connector.denied
        return f"refused: {denied}; records stay in the spool" if denied else ""

    def alarmed(self, code: AlarmCode, sentence: str) -> AlarmError:
        """Note and log an alarm; raise what is returned where it has to stop the agent."""
        self.alarm, self.alarm_code = sentence, code
        _LOG.critical("ALARM: %s", sentence)
        return AlarmError(sentence, code)

    def come_first(self) -> None:
        """Batches were committed: if the flow is urgent and they can be sent now, the others wait."""
        if self.connected and self._sender.is_open:
            self._turn.claim()

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Have the spool begin a new epoch, and send from its first batch on; under the backlog's lock."""
        tip = await self._window.renew(lambda: self._effects.store.renew(epoch, rewrite, change))
        self._backlog.renewed(epoch, tip)
        standing = Standing(epoch, last_seq=tip.last_seq, ordinal=self._sender.ordinal)
        self._sender.renewed(standing, self._effects.clock.monotonic_s())
        self._freed_bytes = 0
        self._moved()
        return tip

    async def replaced(self, gaps: Iterable[SpooledBatch]) -> None:
        """Batches have given way to gaps: read what is sent next from the spool again."""
        for gap in gaps:
            self._sender.replaced(gap.first_seq, gap.seq)
        await self._window.forget()
        self._moved()

    def _moved(self) -> None:
        """The sender may have something to do: look again."""
        self._counters.take(self._sender.counters)
        self._timer.look(self._sender.get_timer())
        self._backlog.grown.set()

    # The connection

    async def run(self, hooks: Hooks) -> None:
        """Keep a connection and send, forever."""
        self._hooks = hooks
        async with asyncio.TaskGroup() as group:
            group.create_task(self._trim())
            group.create_task(self._connector.stay(self._session, self._lost))

    def _lost(self, error: NetError) -> None:
        self._counters.add("connections_lost")
        if isinstance(error, TakenOverError):
            self._counters.add("sessions_taken_over")
        if news := self._connector.news(error):
            _LOG.warning("uplink of %s: %s", self._who.device, news)

    async def _session(self) -> None:
        who = self._who
        # By the spool's epoch no other platform, device or app has the id; a copied spool has, and shows.
        self._connector.client_id = client_id("uplink", who.epoch.hex(), who.device, who.flow)
        try:
            async with self._effects.net.connect(self._connector.client_id) as connection:
                await connection.subscribe(self._ack_topic)
                beside = [one for one in self.beside if one.topic]
                for one in beside:
                    await connection.subscribe(one.topic)
                self._connector.is_connected = True
                async with self._backlog.lock:
                    await self._let_go()  # of what the connection before has not come to
                self._sender.connected(self._effects.clock.monotonic_s())
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(connection))
                    group.create_task(self._receive(connection))
                    group.create_task(self._keep_time())
                    for one in beside:
                        group.create_task(one.speak(connection))
        finally:
            self._sender.disconnected()
            self._turn.release()

    async def _keep_time(self) -> None:
        while True:
            self._sender.handle_timer(self._effects.clock.monotonic_s())
            await self._settle()
            await self._timer.wait(self._sender.get_timer())

    # What is sent

    async def _send(self, connection: Connection) -> None:
        sender, clock = self._sender, self._effects.clock
        while True:
            if wait_s := self._pace.wait_s(clock.monotonic_s()):
                self._turn.release()
                await clock.sleep(wait_s)
            if sender.is_open:
                await self._turn.give_way()
            else:
                self._turn.release()
            if buggify("read again from the spool", 0.05):
                await self._window.forget()
            sender.committed(self._backlog.last_seq)
            sending = sender.next_to_send(clock.monotonic_s())
            if isinstance(sending, SendBatch):
                if not await self._send_batch(connection, sending):
                    await self._rest()
            elif sending is None:
                await self._rest()
            else:
                self._timer.look(sender.get_timer())
                hooks = self._hooks
                said = hooks.hello(sending.ordinal) if isinstance(sending, SendHello) else hooks.schemas()
                await connection.publish(self._topic, encode_envelope(said))

    async def _rest(self) -> None:
        """Wait until there may be more to send."""
        if not self._backlog.grown.is_set():
            self._turn.release()
        await self._backlog.grown.wait()
        self._backlog.grown.clear()

    async def _send_batch(self, connection: Connection, sending: SendBatch) -> bool:
        """Send the next batch; False where there is none that may go."""
        sender, window, clock = self._sender, self._window, self._effects.clock
        if sending.is_inside:
            batch = await window.gap_around(sending.after_seq)
        else:
            batch = await window.after(sending.after_seq, gap_only=sending.gap_only)
        if batch is None:
            if window.damaged_seq:
                await self._replace_damaged(window.damaged_seq)
                return True
            return sending.is_inside  # whatever became of that gap, what is next in turn may go
        digest, is_gap = batch.seal or batch.digest, batch.first_seq > 0
        if sender.sent(sending, batch.seq, batch.size, batch.digest, clock.monotonic_s(), is_gap=is_gap):
            self._timer.look(sender.get_timer())
            payload = encode_envelope(Envelope(batch.header, batch.body, digest, sender.acked_seq + 1))
            self._pace.sent(len(payload), clock.monotonic_s())
            await connection.publish(self._topic, payload)
            sender.published(batch.seq, clock.monotonic_s())
            self._timer.look(sender.get_timer())
        return True

    # What is heard

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            meant = next((one for one in self.beside if one.topic == incoming.topic), None)
            if meant is not None:
                meant.hear(incoming.payload)
            else:
                await self._take(incoming)
        raise NetError("the connection has ended")

    async def _take(self, incoming: Incoming) -> None:
        try:
            control = decode_control(incoming.payload)
        except WireError as error:
            self._counters.add("acks_not_decoded")
            _LOG.warning("uplink of %s: an ack cannot be read: %r", self._who.device, str(error))
            return
        if incoming.topic != self._ack_topic:
            self._counters.add("acks_of_others")
            return
        sender = self._sender
        if isinstance(control, Nack) and control.reason is NackReason.SET_BACK:
            self._on_set_back(control)
            return
        async with self._backlog.lock:  # no ack is compared with what is being replaced
            sender.committed(self._backlog.last_seq)
            if sender.receive_control(control, self._effects.clock.monotonic_s()):
                self._connector.succeeded()
            if sender.is_waiting and buggify("resend at once", 0.02):
                sender.resend(self._effects.clock.monotonic_s())
            rest = await self._note()
        await self._settle(rest)

    def _on_set_back(self, nack: Nack) -> None:
        """Stop: what stands in this spool is of a time before a crossing that ingest has."""
        if nack.epoch != self._backlog.epoch or self._sender.is_open:
            self._counters.add("acks_stale")
            return
        device = self._who.device
        raise self.alarmed(
            AlarmCode.SET_BACK,
            f"the spool of device {device} was restored or copied from before crossing {nack.seq} of flow "
            f"{self._who.flow}, which ingest has: what its steps keep is no longer true; begin anew with "
            "a new state folder: the device then goes on where ingest knows it",
        )

    async def _note(self) -> list[Event]:
        """Take the events that belong to the same hold of the backlog's lock; returns the others."""
        rest: list[Event] = []
        while (event := self._sender.next_event()) is not None:
            if isinstance(event, CompareAck):
                held, ack = await self._window.held(event.ack.seq), event.ack
                seq, digest = (0, b"") if held is None else (held.seq, held.digest)
                self._sender.compared(ack, seq, digest, self._effects.clock.monotonic_s())
            elif isinstance(event, Acked):
                await self._let_go()
            elif isinstance(event, Held):
                await self._note_hold(event.seq)
            else:
                rest.append(event)
        return rest

    async def _note_hold(self, seq: int) -> None:
        """Note and log what ingest cannot take: the spool keeps it, and all behind it."""
        batch = await self._window.held(seq)
        self._held = {} if batch is None else by_channel(batch.rows)
        _LOG.error("ALARM: flow %s, batch %d: %s", self._who.flow, seq, self.held_why)

    async def _let_go(self) -> None:
        """Let go of the batches that are acked, and have them trimmed."""
        if self._window.acked < self._sender.acked_seq:
            self._freed_bytes += await self._window.ack(self._sender.acked_seq, self._sender.acked_digest)
            self._trim_due.set()

    async def _settle(self, events: Iterable[Event] = ()) -> None:
        """Do what is left of what has happened."""
        self._counters.take(self._sender.counters)
        for event in [*events, *iter(self._sender.next_event, None)]:
            if isinstance(event, Silent):
                silence_s = self._settings.silence_ms / 1_000
                raise NetError(f"ingest has said nothing for {silence_s:g} s: connecting anew")
            if isinstance(event, Renew):
                await shield(self._hooks.renew(self._why(event)))
            elif isinstance(event, Examine):
                if not await self._replace_damaged(event.seq):
                    self._sender.intact(event)
                    await self._settle()
            elif isinstance(event, ReadAgain):
                await self._window.forget()
            elif isinstance(event, Welcomed):
                self._hooks.hear(event.welcome)
        self._moved()

    def _why(self, event: Renew) -> str:
        """The alarm for an epoch that cannot go on."""
        device, seq = self._who.device, event.seq
        if event.doubt is Doubt.CLOSED:
            return f"ingest has closed the epoch of device {device}: a later spool took over its name"
        if event.doubt is Doubt.DIGEST_REFUSED:
            return (
                f"ingest has refused the digest of batch {seq} of device {device} {event.times} times, and "
                "its bytes are as they were committed: the spool was copied or restored"
            )
        what = f"acks another batch {seq} than this spool holds"
        if event.doubt is Doubt.ACK_BEYOND:
            what = f"acks batch {seq}, but this spool ends at {self._backlog.last_seq}"
        return (
            f"ingest {what}: the spool of device {device} was copied or restored from a backup, or another "
            "device has its name; give every agent a state folder of its own"
        )

    # What is done to the spool

    async def _replace_damaged(self, seq: int) -> bool:
        """Put a gap in the place of a batch that the disk has damaged; False where it is as it was committed.

        Only what is damaged gives way, after a second look at the disk. A batch that was acked meanwhile, and
        is there until the next trim, arrived before it was damaged.
        """
        return await shield(self._replace(seq))

    async def _replace(self, seq: int) -> bool:
        backlog, window = self._backlog, self._window
        async with backlog.lock:
            await window.forget()
            if seq <= self.acked_seq:
                return True
            batch = await window.held(seq)
            if batch is None:
                return False
            first = batch.first_seq or batch.seq
            previous = self.acked_digest
            if first - 1 > self.acked_seq:
                before = await window.held(first - 1)
                previous = b"" if before is None else before.digest
            if is_intact(previous, batch):
                return False
            gap = replacement(replace(self._who, epoch=backlog.epoch), batch)
            for channel, count in by_channel(batch.rows).items():
                self._counters.add(f"rows_damaged.{channel}", count)
            self._counters.add("batches_damaged")
            change = SpoolCommit(counters=self._counters.changes(), gaps=[gap])
            await self._effects.store.commit(change)  # durable before it is sent
            backlog.replaced(batch.size - gap.size)
            self._sender.damaged(first, batch.seq)
        self.alarmed(
            AlarmCode.DAMAGED_BATCH,
            f"batch {seq} of device {self._who.device} was damaged on its disk: {batch.count} rows are lost "
            "and declared as dropped; look after that disk",
        )
        self._moved()
        return True

    async def _trim(self) -> None:
        """Take what is acked out of the spool, one transaction for all acks since the one before; forever.

        Only a full spool and an agent's end wait for it. Where a crash forgets an ack, the batches are sent
        again, and ingest knows them. So it is done seldom, and its sync holds no commit up.
        """
        backlog, clock = self._backlog, self._effects.clock
        while True:
            await self._trim_due.wait()
            self._trim_due.clear()
            if buggify("late trim", 0.1):
                await clock.sleep(1)
            async with backlog.lock:
                seq, freed_bytes = self._window.acked, self._freed_bytes
                self._freed_bytes = 0
                if seq > backlog.acked_seq:  # else a new epoch has begun meanwhile
                    await self._effects.store.trim(seq)
                    backlog.trimmed(seq, freed_bytes)
            await clock.sleep(self._settings.trim_ms / 1_000)
            if self._settings.trim_rest_ms:
                await first_done(clock.sleep(self._settings.trim_rest_ms / 1_000), backlog.room_wanted.wait())


def policy_of(settings: UplinkSettings) -> SenderPolicy:
    """The uplink's policy: the settings, with times in seconds."""
    return SenderPolicy(
        settings.window,
        settings.window_bytes,
        settings.resend_ms / 1_000,
        settings.resend_ms_max / 1_000,
        settings.probe_ms_min / 1_000,
        settings.silence_ms / 1_000,
        settings.digest_retries_max,
    )
