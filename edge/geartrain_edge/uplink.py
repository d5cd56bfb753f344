"""The uplink: sends committed batches in seq order until ingest has acked them, whatever the network does.

Between spool and broker. Guarantees (I3): a batch is trimmed only on our own ack for this epoch with this
spool's digest, never on a puback; what is not acked is sent again with the same identity, on a timer, on a
NACK and on every new connection; an ack for another history stops the agent. All that waits is bounded by
its settings.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from geartrain.errors import NetError, WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness, SpoolStore
from geartrain.wire.codec import decode_control, encode_envelope
from geartrain.wire.envelope import Ack, Control, Envelope, Nack, NackReason
from geartrain.wire.topics import ack_topic, up_topic
from geartrain_edge.backlog import Backlog, Counters, Identity
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.window import Window

_LOG = logging.getLogger("geartrain.uplink")
_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Effects:
    """The ports that the uplink uses."""

    store: SpoolStore
    net: Net
    clock: Clock
    randomness: Randomness


class Uplink:
    """Runs until it is cancelled, or raises `AlarmError` or `SpoolError`."""

    def __init__(
        self, settings: UplinkSettings, who: Identity, effects: Effects, backlog: Backlog, counters: Counters
    ) -> None:
        self._settings, self._who, self._effects = settings, who, effects
        self._backlog, self._counters = backlog, counters
        self._window = Window(effects.store, backlog, settings.window, settings.window_bytes)
        self._up, self._down = up_topic(who.device, who.flow), ack_topic(who.device, who.flow)
        self._acked = asyncio.Event()
        self._freed_bytes = 0
        self._sent_max = backlog.acked_seq
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
            self._heard = False
            # In its own task: its task groups leave `cancelling()` raised, and ours must tell of our end.
            session = asyncio.create_task(self._session())
            try:
                await session
            except* NetError as group:
                _LOG.warning("uplink of %s: %s", self._who.device, group.exceptions[0])
            finally:
                self.connected = False
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the session may have put a NetError in its place
                raise asyncio.CancelledError
            self._counters.add("connections_lost")
            failures = 0 if self._heard else min(failures + 1, _DOUBLINGS_MAX)
            pause_ms_max = min(settings.backoff_ms * 2**failures, settings.backoff_ms_max)
            await self._effects.clock.sleep(self._effects.randomness.uniform(0, pause_ms_max) / 1_000)

    async def _session(self) -> None:
        client_id = f"gear-{self._who.device}-{self._who.flow}"
        async with self._effects.net.connect(client_id) as connection:
            await connection.subscribe(self._down)
            self.connected = True
            self._heard_s = self._progress_s = self._effects.clock.monotonic_s()
            self._resend_s = self._settings.resend_ms / 1_000
            self._window.rewind(self._window.acked + 1)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(connection))
                group.create_task(self._receive(connection))
                group.create_task(self._watch())

    async def _send(self, connection: Connection) -> None:
        window = self._window
        while True:
            batch = await window.next()
            if batch is None:
                await self._backlog.grown.wait()
                self._backlog.grown.clear()
                continue
            payload = encode_envelope(Envelope(batch.header, batch.body, batch.digest, window.acked + 1))
            self._counters.add("batches_sent_again", batch.seq <= self._sent_max)
            self._sent_max = max(self._sent_max, batch.seq)
            window.sent = batch.seq  # before the publish, during which a NACK may set it back
            await connection.publish(self._up, payload)

    async def _receive(self, connection: Connection) -> None:
        async for incoming in connection.incoming():
            control = self._decoded(incoming)
            if control is None:
                continue
            self._heard, self._heard_s = True, self._effects.clock.monotonic_s()
            if isinstance(control, Ack):
                await self._on_ack(control)
            elif isinstance(control, Nack):
                self._on_nack(control)
        raise NetError("the connection has ended")

    def _decoded(self, incoming: Incoming) -> Control | None:
        """The ack or NACK, None (and a counter) where it is none of this epoch's."""
        try:
            control = decode_control(incoming.payload)
        except WireError as error:
            self._counters.add("acks_not_decoded")
            _LOG.warning("uplink of %s: an ack cannot be read: %r", self._who.device, str(error))
            return None
        if incoming.topic != self._down or control.flow != self._who.flow or control.epoch != self._who.epoch:
            self._counters.add("acks_of_others")
            return None
        return control

    async def _on_ack(self, ack: Ack) -> None:
        if ack.seq <= self._window.acked:
            self._counters.add("acks_stale")
            return
        if ack.seq > self._backlog.last_seq:
            raise self._refusal(f"acks batch {ack.seq}, but this spool ends at {self._backlog.last_seq}")
        if await self._window.digest_at(ack.seq) != ack.digest:
            raise self._refusal(f"acks another batch {ack.seq} than this spool holds")
        freed_bytes = await self._window.ack(ack.seq)
        self._freed_bytes += freed_bytes
        self._progress_s = self._effects.clock.monotonic_s()
        self._resend_s = self._settings.resend_ms / 1_000
        self._rewound_seq = 0
        self._acked.set()
        self._backlog.grown.set()  # there is room in the window

    def _refusal(self, what: str) -> AlarmError:
        self._counters.add("ack_refused")
        return self._alarmed(
            f"ingest {what}: the spool of device {self._who.device} was copied or restored from a backup, or "
            "another device has its name; give every agent a state folder of its own"
        )

    def _alarmed(self, sentence: str) -> AlarmError:
        self.alarm = sentence
        _LOG.critical("ALARM: %s", sentence)
        return AlarmError(sentence)

    def _on_nack(self, nack: Nack) -> None:
        self._counters.add("nacks")
        if nack.reason is NackReason.CLOSED:
            self._counters.add("epoch_closed")
            raise self._alarmed(
                f"ingest has closed the epoch of device {self._who.device}: a later spool took over its name"
            )
        if nack.reason is NackReason.DIGEST:
            self._on_digest_refused(nack)
        now_s, seq = self._effects.clock.monotonic_s(), max(nack.seq, self._window.acked + 1)
        # A lost batch brings a NACK for each one behind it: the first has set the sending back already.
        again = self._rewound_seq != 0 and seq >= self._rewound_seq
        if again and now_s - self._rewound_s < self._settings.resend_ms / 4_000:
            return
        if self._window.rewind(seq):
            self._rewound_seq, self._rewound_s = seq, now_s
            self._backlog.grown.set()

    def _on_digest_refused(self, nack: Nack) -> None:
        self._counters.add("digests_refused")
        seq, refusals = self._digest_refusals
        self._digest_refusals = (nack.seq, refusals + 1 if seq == nack.seq else 1)
        if self._digest_refusals[1] > self._settings.digest_retries_max:
            raise self._alarmed(
                f"ingest has refused the digest of batch {nack.seq} of device {self._who.device} "
                f"{self._digest_refusals[1]} times: its spool was copied, restored or damaged"
            )

    async def _watch(self) -> None:
        """The resend timer, and the end of a connection on which ingest is silent."""
        clock, settings = self._effects.clock, self._settings
        while True:
            await clock.sleep(settings.resend_ms / 4_000)
            now_s = clock.monotonic_s()
            if not self._window.waiting:
                self._progress_s = self._heard_s = now_s
            elif now_s - self._heard_s >= settings.silence_ms / 1_000:
                raise NetError(
                    f"ingest has said nothing for {settings.silence_ms / 1_000:g} s: connecting anew"
                )
            elif now_s - self._progress_s >= self._resend_s:
                self._counters.add("resends")
                self._progress_s = now_s
                self._resend_s = min(self._resend_s * 2, settings.resend_ms_max / 1_000)
                self._window.rewind(self._window.acked + 1)
                self._backlog.grown.set()

    async def _trim_acked(self) -> None:
        """Trim what is acked, in one transaction for all acks that came during the one before."""
        while True:
            await self._acked.wait()
            self._acked.clear()
            seq, freed_bytes = self._window.acked, self._freed_bytes
            self._freed_bytes = 0
            await self._effects.store.trim(seq)
            self._backlog.trimmed(seq, freed_bytes)
