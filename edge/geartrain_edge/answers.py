"""Answers: what ingest says to a device, and what it moves there.

Under the uplink. Guarantees (I3): a batch is let go of only on our own ack for this epoch with this spool's
digest, never on a puback; an ack for another history makes the agent begin a new epoch, a second one stops
it; a NACK sets the sending back, at most once for each batch in a while.
"""

from __future__ import annotations

import logging

from geartrain.errors import WireError
from geartrain.ports import Incoming
from geartrain.wire.codec import decode_control
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Welcome
from geartrain.wire.topics import ack_topic
from geartrain_edge.damage import Damage
from geartrain_edge.greeting import Greeting
from geartrain_edge.link import Hooks, Link
from geartrain_edge.trimming import Trimming
from geartrain_edge.unbroken import unbroken

_LOG = logging.getLogger("geartrain.uplink")


class Answers:
    """What one flow hears. `hooks` must be there before the first."""

    hooks: Hooks

    def __init__(self, link: Link, greeting: Greeting, trimming: Trimming, damage: Damage) -> None:
        self._settings, self._who, self._clock = link.settings, link.who, link.effects.clock
        self._backlog, self._window, self._counters = link.backlog, link.window, link.counters
        self._flights, self._patience, self._greeting = link.flights, link.patience, greeting
        self._trimming, self._damage = trimming, damage
        self.topic = ack_topic(link.who.device, link.who.flow)
        self.schemas_due = False
        """Whether ingest has asked for the schemas; the uplink sends them and takes it back."""
        self.any = False
        """Whether there was one on this connection; the uplink takes it back."""
        self._digest_refusals = (0, 0)
        self._rewound_seq, self._rewound_s = 0, 0.0

    def forget(self) -> None:
        """A new epoch begins: what was said of the one before means nothing any more."""
        self._digest_refusals = (0, 0)
        self._rewound_seq = 0

    async def take(self, incoming: Incoming) -> None:
        """Do what an answer says; one that is damaged, or of another epoch, raises a counter."""
        control = self._decoded(incoming)
        if control is None:
            return
        self.any = True
        self._patience.heard()
        if isinstance(control, Ack):
            await self._on_ack(control)
        elif isinstance(control, Nack):
            await self._on_nack(control)
        elif isinstance(control, Welcome):
            if self._greeting.welcomed(control, self.hooks):
                self._patience.opened()
        else:
            self._greeting.offered(control)

    def _decoded(self, incoming: Incoming) -> Control | None:
        """The answer, None (and a counter) where it came damaged or is none of this epoch's."""
        try:
            control = decode_control(incoming.payload)
        except WireError as error:
            self._counters.add("acks_not_decoded")
            _LOG.warning("uplink of %s: an ack cannot be read: %r", self._who.device, str(error))
            return None
        if incoming.topic != self.topic or not self._is_ours(control):
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
        self._patience.acked()
        self._counters.add("probes_needless", self._flights.acked(ack.seq, self._clock.monotonic_s()))
        self._rewound_seq = 0
        self._trimming.acked(freed_bytes)
        self._backlog.grown.set()  # there is room in the window

    async def _refuse(self, what: str) -> None:
        self._counters.add("ack_refused")
        await self._begin_anew(
            f"ingest {what}: the spool of device {self._who.device} was copied or restored from a backup, or "
            "another device has its name; give every agent a state folder of its own"
        )

    async def _begin_anew(self, why: str) -> None:
        await unbroken(self.hooks.renew(why))

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
            self.schemas_due = True
        now_s, seq = self._clock.monotonic_s(), max(nack.seq, self._window.acked + 1)
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
        if not await self._damage.declare(nack.seq):
            await self._begin_anew(
                f"ingest has refused the digest of batch {nack.seq} of device {self._who.device} "
                f"{times} times, and its bytes are as they were committed: the spool was copied or restored"
            )
        return True
