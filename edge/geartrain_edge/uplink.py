"""The uplink: sends committed batches in seq order until ingest has acked them, whatever the network does.

Between spool and broker. Guarantees (I3): a batch is trimmed only on our own ack for this epoch with this
spool's digest, never on a puback; what is not acked is sent again with the same identity, on a timer, on a
NACK and on every new connection; an ack for another history makes the agent begin a new epoch, a second one
stops it. All that waits is bounded by its settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from geartrain.errors import NetError, WireError
from geartrain.ports import (
    Clock,
    Connection,
    Incoming,
    Net,
    Randomness,
    Rewrite,
    SpoolCommit,
    SpoolStore,
    SpoolTip,
)
from geartrain.ports.buggify import buggify
from geartrain.wire.codec import decode_control, encode_envelope
from geartrain.wire.envelope import Ack, Control, Envelope, Nack, NackReason, Offer, Welcome
from geartrain.wire.topics import ack_topic, up_topic
from geartrain_edge.backlog import Backlog, Counters, Identity
from geartrain_edge.errors import AlarmError
from geartrain_edge.flights import Flights
from geartrain_edge.gaps import by_channel, is_intact, replacement
from geartrain_edge.precedence import Precedence, Turn
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.unbroken import unbroken
from geartrain_edge.window import Window

_LOG = logging.getLogger("geartrain.uplink")
_DOUBLINGS_MAX = 20
_AT_ONCE_S = 5.0


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
    """What else goes over the same connection: the way down."""

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

    def __init__(
        self,
        settings: UplinkSettings,
        who: Identity,
        effects: Effects,
        backlog: Backlog,
        counters: Counters,
        turn: Turn | None = None,
    ) -> None:
        """`turn`: among the flows of one agent; None where it has only this one."""
        self._settings, self._who, self._effects = settings, who, effects
        self._turn = turn or Precedence().turn(who.flow, is_urgent=False)
        self.hooks: Hooks | None = None
        self.beside: Beside | None = None
        self._backlog, self._counters = backlog, counters
        self._window = Window(effects.store, backlog, settings.window, settings.window_bytes)
        self._up, self._down = up_topic(who.device, who.flow), ack_topic(who.device, who.flow)
        self._acked = asyncio.Event()
        self._freed_bytes = 0
        self._schemas_due = False
        self.asks = False
        """Whether the epoch is not known to be open: a welcome has to come before anything else is sent."""
        self._ordinal = 1
        self._answered = asyncio.Event()
        self._flights, self._probe_due = Flights(settings.probe_ms_min, settings.resend_ms), False
        self._sent_max = backlog.acked_seq
        self._has_sent = False
        """Whether this connection was handed a batch."""
        self._digest_refusals = (0, 0)
        self._resend_s = settings.resend_ms / 1_000
        self._progress_s = self._heard_s = self._rewound_s = 0.0
        self._rewound_seq = 0
        self._heard = False
        self.connected = False
        self.alarm = ""
        """What stopped the uplink for good, a sentence; empty while nothing did."""

    async def run(self) -> None:
        """Keep a connection and send, forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._trim_acked())
            group.create_task(self._stay_connected())

    async def _stay_connected(self) -> None:
        settings, failures = self._settings, 0
        while True:
            self._heard, began_s = False, self._effects.clock.monotonic_s()
            # In its own task: its task groups leave `cancelling()` raised, and ours must tell of our end.
            session = asyncio.create_task(self._session())
            try:
                await session
            except* NetError as group:
                _LOG.warning("uplink of %s: %s", self._who.device, group.exceptions[0])
            finally:
                was_refused = not self.connected
                self.connected = False
                self._turn.release()
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the session may have put a NetError in its place
                raise asyncio.CancelledError
            self._counters.add("connections_lost")
            failures = 0 if self._heard else min(failures + 1, _DOUBLINGS_MAX)
            is_quick = self._effects.clock.monotonic_s() - began_s < _AT_ONCE_S
            longest_ms = settings.refused_ms_max if was_refused and is_quick else settings.backoff_ms_max
            pause_ms_max = min(settings.backoff_ms * 2**failures, longest_ms, settings.backoff_ms_max)
            await self._effects.clock.sleep(self._effects.randomness.uniform(0, pause_ms_max) / 1_000)

    async def _session(self) -> None:
        client_id = f"gear-{self._who.device}-{self._who.flow}"
        async with self._effects.net.connect(client_id) as connection:
            await connection.subscribe(self._down)
            beside = self.beside if self.beside is not None and self.beside.topic else None
            if beside is not None:
                await connection.subscribe(beside.topic)
            self.connected = True
            self._heard_s = self._progress_s = self._effects.clock.monotonic_s()
            self._resend_s = self._settings.resend_ms / 1_000
            self._has_sent = False
            self._window.rewind(self._window.acked + 1)
            self._flights.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(connection))
                group.create_task(self._receive(connection))
                group.create_task(self._watch())
                group.create_task(self._probe())
                if beside is not None:
                    group.create_task(beside.speak(connection))

    async def _send(self, connection: Connection) -> None:
        window = self._window
        while True:
            await self._say_hello(connection)
            await self._turn.give_way()
            if self._schemas_due and self.hooks is not None:
                self._schemas_due = False
                await connection.publish(self._up, encode_envelope(self.hooks.schemas()))
            if buggify("read again from the spool", 0.05):
                await window.forget()
            is_probe, self._probe_due = self._probe_due, False
            batch = await (window.held(window.acked + 1) if is_probe else window.next())
            if self.asks or (is_probe and batch is None):  # a new epoch, or an ack, has come meanwhile
                continue
            if batch is None and window.damaged_seq:
                await self._declare_damaged(window.damaged_seq)
                continue
            if batch is None:
                if not self._backlog.grown.is_set():
                    self._turn.release()
                await self._backlog.grown.wait()
                self._backlog.grown.clear()
                continue
            digest = batch.seal or batch.digest
            payload = encode_envelope(Envelope(batch.header, batch.body, digest, window.acked + 1))
            is_again = batch.seq <= self._sent_max
            self._counters.add("batches_sent_again", is_again)
            self._sent_max, self._has_sent = max(self._sent_max, batch.seq), True
            # Before the publish, during which a NACK may set it back.
            window.sent = max(window.sent, batch.seq)
            await connection.publish(self._up, payload)
            if batch.seq > window.acked:
                self._flights.sent(batch.seq, self._effects.clock.monotonic_s(), again=is_again)

    async def _say_hello(self, connection: Connection) -> None:
        """Ask to open the epoch, again and again, until it is known to be open."""
        pause_s = self._settings.resend_ms / 1_000
        if self.asks:
            self._turn.release()
        while self.asks and self.hooks is not None:
            self._answered.clear()
            await connection.publish(self._up, encode_envelope(self.hooks.hello(self._ordinal)))
            self._counters.add("hellos_sent")
            async with asyncio.TaskGroup() as group:
                waits = group.create_task(self._answered.wait())
                pauses = group.create_task(self._effects.clock.sleep(pause_s))
                await asyncio.wait((waits, pauses), return_when=asyncio.FIRST_COMPLETED)
                waits.cancel()
                pauses.cancel()
            pause_s = min(pause_s * 2, self._settings.resend_ms_max / 1_000)

    def _on_welcome(self, welcome: Welcome) -> None:
        if not self.asks or self.hooks is None:
            self._counters.add("acks_stale")
            return
        self._progress_s = self._effects.clock.monotonic_s()
        self.asks = False
        self.hooks.hear(welcome)
        self._answered.set()

    def _on_offer(self, offer: Offer) -> None:
        """Another epoch has the ordinal: ask again with a higher one, at once."""
        if not self.asks or offer.ordinal <= self._ordinal:
            self._counters.add("acks_stale")
            return
        self._ordinal = offer.ordinal
        self._answered.set()

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            if self.beside is not None and incoming.topic == self.beside.topic:
                self.beside.hear(incoming.payload)
                continue
            control = self._decoded(incoming)
            if control is None:
                continue
            self._heard, self._heard_s = True, self._effects.clock.monotonic_s()
            if isinstance(control, Ack):
                await self._on_ack(control)
            elif isinstance(control, Nack):
                await self._on_nack(control)
            elif isinstance(control, Welcome):
                self._on_welcome(control)
            else:
                self._on_offer(control)
        raise NetError("the connection has ended")

    def _decoded(self, incoming: Incoming) -> Control | None:
        """The answer, None (and a counter) where it came damaged or is none of this epoch's."""
        try:
            control = decode_control(incoming.payload)
        except WireError as error:
            self._counters.add("acks_not_decoded")
            _LOG.warning("uplink of %s: an ack cannot be read: %r", self._who.device, str(error))
            return None
        if incoming.topic != self._down or not self._is_ours(control):
            self._counters.add("acks_of_others")
            return None
        return control

    def _is_ours(self, control: Control) -> bool:
        return control.flow == self._who.flow and control.epoch == self._backlog.epoch

    async def _on_ack(self, ack: Ack) -> None:
        if ack.seq <= self._window.acked:
            self._counters.add("acks_stale")
            return
        if ack.seq > self._backlog.last_seq:
            await self._refuse(f"acks batch {ack.seq}, but this spool ends at {self._backlog.last_seq}")
            return
        async with self._backlog.lock:
            held = await self._window.held(ack.seq)
            if held is not None and held.seq > ack.seq:
                # Sent before it was dropped. The gap goes there too, and its end is what can be compared.
                self._counters.add("acks_inside_gaps")
                return
            if held is not None and held.digest == ack.digest:
                await self._take_ack(ack)
                return
        await self._refuse(f"acks another batch {ack.seq} than this spool holds")

    async def _take_ack(self, ack: Ack) -> None:
        freed_bytes = await self._window.ack(ack.seq, ack.digest)
        self._freed_bytes += freed_bytes
        self._progress_s = self._effects.clock.monotonic_s()
        self._counters.add("probes_needless", self._flights.acked(ack.seq, self._progress_s))
        self._resend_s = self._settings.resend_ms / 1_000
        self._rewound_seq = 0
        self._acked.set()
        self._backlog.grown.set()  # there is room in the window

    async def _refuse(self, what: str) -> None:
        self._counters.add("ack_refused")
        await self._begin_anew(
            f"ingest {what}: the spool of device {self._who.device} was copied or restored from a backup, or "
            "another device has its name; give every agent a state folder of its own"
        )

    async def _begin_anew(self, why: str) -> None:
        if self.hooks is None:
            raise self.alarmed(why)
        await unbroken(self.hooks.renew(why))

    def alarmed(self, sentence: str) -> AlarmError:
        """Note and log an alarm; raise what is returned where it has to stop the agent."""
        self.alarm = sentence
        _LOG.critical("ALARM: %s", sentence)
        return AlarmError(sentence)

    def come_first(self) -> None:
        """Batches were committed: if the flow is urgent and they can be sent now, the others wait."""
        if self.connected and not self.asks:
            self._turn.claim()

    @property
    def acked_seq(self) -> int:
        """The last acked batch, which may not be trimmed yet."""
        return self._window.acked

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Have the spool begin a new epoch, and send from its first batch on; under the backlog's lock."""
        tip = await self._window.renew(lambda: self._effects.store.renew(epoch, rewrite, change))
        self._backlog.renewed(epoch, tip)
        self._flights.clear()
        self._freed_bytes = self._sent_max = self._rewound_seq = 0
        self.asks = True
        self._digest_refusals = (0, 0)
        return tip

    async def forget(self) -> None:
        """Read what is sent next from the spool again, where batches have given way to gaps."""
        await self._window.forget()
        self._backlog.grown.set()

    async def _on_nack(self, nack: Nack) -> None:
        self._counters.add("nacks")
        if nack.reason is NackReason.CLOSED:
            self._counters.add("epoch_closed")
            await self._begin_anew(
                f"ingest has closed the epoch of device {self._who.device}: a later spool took over its name"
            )
            return
        if nack.reason is NackReason.DIGEST and await self._on_digest_refused(nack):
            return
        if nack.reason is NackReason.NEED_SCHEMA:
            self._counters.add("schemas_sent_again")
            self._schemas_due = True
        now_s, seq = self._effects.clock.monotonic_s(), max(nack.seq, self._window.acked + 1)
        # A lost batch brings a NACK for each one behind it: the first has set the sending back already.
        again = self._rewound_seq != 0 and seq >= self._rewound_seq
        if again and now_s - self._rewound_s < self._settings.resend_ms / 4_000:
            return
        if self._window.rewind(seq):
            self._rewound_seq, self._rewound_s = seq, now_s
            self._backlog.grown.set()

    async def _on_digest_refused(self, nack: Nack) -> bool:
        """Whether so many refusals of one batch were dealt with, by a new epoch or by a gap in its place."""
        self._counters.add("digests_refused")
        seq, refusals = self._digest_refusals
        self._digest_refusals = (nack.seq, refusals + 1 if seq == nack.seq else 1)
        if self._digest_refusals[1] <= self._settings.digest_retries_max:
            await self._window.forget()  # what was damaged in memory only is read again
            return False
        times, self._digest_refusals = self._digest_refusals[1], (0, 0)
        if not await self._declare_damaged(nack.seq):
            await self._begin_anew(
                f"ingest has refused the digest of batch {nack.seq} of device {self._who.device} "
                f"{times} times, and its bytes are as they were committed: the spool was copied or restored"
            )
        return True

    async def _declare_damaged(self, seq: int) -> bool:
        """Put a gap in the place of a batch that the disk has damaged; False where it is as it was.

        One that was acked meanwhile, and is there until the next trim, arrived before it was damaged.
        """
        return await unbroken(self._replace_damaged(seq))

    async def _replace_damaged(self, seq: int) -> bool:
        backlog, store = self._backlog, self._effects.store
        async with backlog.lock:
            await self._window.forget()
            if seq <= self._window.acked:
                return True
            batch = await self._window.held(seq)
            if batch is None:
                return False
            first = batch.first_seq or batch.seq
            previous = backlog.acked_digest
            if first - 1 > self._window.acked:
                before = await self._window.held(first - 1)
                previous = b"" if before is None else before.digest
            if is_intact(previous, batch):
                return False
            gap = replacement(replace(self._who, epoch=backlog.epoch), batch)
            for channel, count in by_channel(batch.rows).items():
                self._counters.add(f"rows_damaged.{channel}", count)
            self._counters.add("batches_damaged")
            await store.commit(SpoolCommit(counters=self._counters.changes(), gaps=[gap]))
            backlog.replaced(batch.size - gap.size)
            self._window.rewind(first)
        self.alarmed(
            f"batch {seq} of device {self._who.device} was damaged on its disk: {batch.count} rows are lost "
            "and declared as dropped; look after that disk"
        )
        backlog.grown.set()
        return True

    @property
    def _is_waiting(self) -> bool:
        """Whether an ack is due on this connection. That all is about to be sent again does not change it:
        the connection may take no more publishes, because pubacks were lost.
        """
        return self._has_sent and max(self._sent_max, self._window.sent) > self._window.acked

    async def _watch(self) -> None:
        """The resend timer, and the end of a connection on which ingest is silent."""
        clock, settings = self._effects.clock, self._settings
        while True:
            await clock.sleep(settings.resend_ms / 4_000)
            now_s = clock.monotonic_s()
            if not self._is_waiting and not self.asks:
                self._progress_s = self._heard_s = now_s
            elif now_s - self._heard_s >= settings.silence_ms / 1_000:
                raise NetError(
                    f"ingest has said nothing for {settings.silence_ms / 1_000:g} s: connecting anew"
                )
            elif self._window.waiting and (
                now_s - self._progress_s >= self._resend_s or buggify("resend at once", 0.1)
            ):
                self._counters.add("resends")
                self._progress_s = now_s
                self._resend_s = min(self._resend_s * 2, settings.resend_ms_max / 1_000)
                self._window.rewind(self._window.acked + 1)
                self._backlog.grown.set()

    async def _probe(self) -> None:
        """Send the oldest batch again when its ack is overdue, long before the resend timer fires."""
        clock, flights = self._effects.clock, self._flights
        while True:
            due_s, now_s = flights.due_s, clock.monotonic_s()
            if due_s is None:
                flights.moved.clear()
                await flights.moved.wait()
            elif due_s > now_s:
                await clock.sleep(due_s - now_s)
            else:
                flights.probed(now_s)
                self._counters.add("probes")
                self._probe_due = True
                self._backlog.grown.set()

    async def _trim_acked(self) -> None:
        """Trim what is acked, in one transaction for all acks that came since the one before.

        Nothing waits for it but a full spool and an agent's end: where a crash has an ack forgotten, its
        batches are sent again, which ingest knows. So it is done seldom, and its sync keeps no commit back.
        """
        while True:
            await self._acked.wait()
            self._acked.clear()
            if buggify("late trim", 0.1):
                await self._effects.clock.sleep(1)
            async with self._backlog.lock:
                seq, freed_bytes = self._window.acked, self._freed_bytes
                self._freed_bytes = 0
                if seq > self._backlog.acked_seq:  # else a new epoch has begun meanwhile
                    await self._effects.store.trim(seq)
                    self._backlog.trimmed(seq, freed_bytes)
            await self._effects.clock.sleep(self._settings.trim_ms / 1_000)
