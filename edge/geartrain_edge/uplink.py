"""The uplink: sends committed batches in seq order until ingest has acked them, whatever the network does.

Between spool and broker. Guarantees (I3): a batch is trimmed only on our own ack for this epoch with this
spool's digest, never on a puback; what is not acked is sent again with the same identity, on a timer, on a
NACK and on every new connection; an ack for another history makes the agent begin a new epoch, a second one
stops it. All that waits is bounded by its settings.
"""

from __future__ import annotations

import asyncio
import logging

from geartrain.errors import NetError
from geartrain.ports import Connection, Rewrite, SpoolCommit, SpooledBatch, SpoolTip
from geartrain.ports.buggify import buggify
from geartrain.wire.codec import encode_envelope
from geartrain.wire.envelope import Envelope
from geartrain.wire.topics import up_topic
from geartrain_edge.answers import Answers
from geartrain_edge.backlog import Backlog, Counters, Identity
from geartrain_edge.damage import Damage
from geartrain_edge.errors import AlarmError
from geartrain_edge.flights import Flights
from geartrain_edge.greeting import Greeting
from geartrain_edge.link import Alarm, Beside, Effects, Hooks, Link
from geartrain_edge.patience import Patience
from geartrain_edge.precedence import Precedence, Turn
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.trimming import Trimming
from geartrain_edge.window import Window

_LOG = logging.getLogger("geartrain.uplink")
_DOUBLINGS_MAX = 20
_AT_ONCE_S = 5.0


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
    ) -> None:
        """`turn`: among the flows of one agent; None where it has only this one."""
        self._settings, self._who, self._effects = settings, who, effects
        self._turn = turn or Precedence().turn(who.flow, is_urgent=False)
        self.beside: Beside | None = None
        self._backlog, self._counters = backlog, counters
        self._window = Window(effects.store, backlog, settings.window, settings.window_bytes)
        self._flights, self._probe_due = Flights(settings.probe_ms_min, settings.resend_ms), False
        self._patience, self._alarm = Patience(settings, effects.clock), Alarm()
        link = Link(
            settings,
            who,
            effects,
            backlog,
            counters,
            self._turn,
            self._window,
            self._flights,
            self._patience,
            self._alarm,
        )
        self._greeting, self._trimming, self._damage = Greeting(link), Trimming(link), Damage(link)
        self._answers = Answers(link, self._greeting, self._trimming, self._damage)
        self._topic = up_topic(who.device, who.flow)
        self._sent_max = backlog.acked_seq
        self._has_sent = False
        """Whether this connection was handed a batch."""
        self.connected = False

    async def run(self, hooks: Hooks) -> None:
        """Keep a connection and send, forever."""
        self._hooks = self._answers.hooks = hooks
        async with asyncio.TaskGroup() as group:
            group.create_task(self._trimming.run())
            group.create_task(self._stay_connected())

    async def _stay_connected(self) -> None:
        settings, failures = self._settings, 0
        while True:
            self._answers.any, began_s = False, self._effects.clock.monotonic_s()
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
            failures = 0 if self._answers.any else min(failures + 1, _DOUBLINGS_MAX)
            is_quick = self._effects.clock.monotonic_s() - began_s < _AT_ONCE_S
            longest_ms = settings.refused_ms_max if was_refused and is_quick else settings.backoff_ms_max
            pause_ms_max = min(settings.backoff_ms * 2**failures, longest_ms, settings.backoff_ms_max)
            await self._effects.clock.sleep(self._effects.randomness.uniform(0, pause_ms_max) / 1_000)

    async def _session(self) -> None:
        client_id = f"gear-{self._who.device}-{self._who.flow}"
        async with self._effects.net.connect(client_id) as connection:
            await connection.subscribe(self._answers.topic)
            beside = self.beside if self.beside is not None and self.beside.topic else None
            if beside is not None:
                await connection.subscribe(beside.topic)
            self.connected = True
            self._patience.begin()
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
        window, answers, topic = self._window, self._answers, self._topic
        while True:
            await self._greeting.say(connection, topic, self._hooks)
            await self._turn.give_way()
            if answers.schemas_due:
                answers.schemas_due = False
                await connection.publish(topic, encode_envelope(self._hooks.schemas()))
            if buggify("read again from the spool", 0.05):
                await window.forget()
            is_probe, self._probe_due = self._probe_due, False
            batch = await (window.held(window.acked + 1) if is_probe else window.next())
            if self.asks or (is_probe and batch is None):  # a new epoch, or an ack, has come meanwhile
                continue
            if batch is None and window.damaged_seq:
                await self._damage.declare(window.damaged_seq)
            elif batch is None:
                await self._rest()
            else:
                await self._publish(connection, batch)

    async def _rest(self) -> None:
        """Wait until there may be more to send."""
        if not self._backlog.grown.is_set():
            self._turn.release()
        await self._backlog.grown.wait()
        self._backlog.grown.clear()

    async def _publish(self, connection: Connection, batch: SpooledBatch) -> None:
        window, digest = self._window, batch.seal or batch.digest
        payload = encode_envelope(Envelope(batch.header, batch.body, digest, window.acked + 1))
        is_again = batch.seq <= self._sent_max
        self._counters.add("batches_sent_again", is_again)
        self._sent_max, self._has_sent = max(self._sent_max, batch.seq), True
        # Before the publish, during which a NACK may set it back.
        window.sent = max(window.sent, batch.seq)
        await connection.publish(self._topic, payload)
        if batch.seq > window.acked:
            self._flights.sent(batch.seq, self._effects.clock.monotonic_s(), again=is_again)

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            if self.beside is not None and incoming.topic == self.beside.topic:
                self.beside.hear(incoming.payload)
            else:
                await self._answers.take(incoming)
        raise NetError("the connection has ended")

    @property
    def asks(self) -> bool:
        """Whether the epoch is not known to be open: a welcome has to come before anything else is sent."""
        return self._greeting.is_due

    @asks.setter
    def asks(self, asks: bool) -> None:
        self._greeting.is_due = asks

    @property
    def alarm(self) -> str:
        """What stopped the uplink for good, a sentence; empty while nothing did."""
        return self._alarm.sentence

    def alarmed(self, sentence: str) -> AlarmError:
        """Note and log an alarm; raise what is returned where it has to stop the agent."""
        return self._alarm.ring(sentence)

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
        self._trimming.forget()
        self._answers.forget()
        self._sent_max = 0
        self.asks = True
        return tip

    async def forget(self) -> None:
        """Read what is sent next from the spool again, where batches have given way to gaps."""
        await self._window.forget()
        self._backlog.grown.set()

    @property
    def _is_waiting(self) -> bool:
        """Whether an ack is due on this connection. That all is about to be sent again does not change it:
        the connection may take no more publishes, because pubacks were lost.
        """
        return self._has_sent and max(self._sent_max, self._window.sent) > self._window.acked

    async def _watch(self) -> None:
        """The resend timer, and the end of a connection on which ingest is silent."""
        patience, pause_s = self._patience, self._settings.resend_ms / 4_000
        while True:
            await self._effects.clock.sleep(pause_s)
            if not self._is_waiting and not self.asks:
                patience.rest()
                continue
            patience.check()
            if self._window.waiting and (patience.is_resend_due or buggify("resend at once", 0.1)):
                self._counters.add("resends")
                patience.resent()
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
