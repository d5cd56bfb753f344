"""The sender: one stream of numbered batches on its way to one receiver, as a state machine without I/O.

Used by the agent on its way up and by the outbox on its way down. The driver owns the store, the connection
and the clock. It tells the machine what was heard and what time it is, and does what `next_to_send` and
`next_event` say. Guarantees (I3): a batch is acked only by an ack for this epoch with the digest that the
store holds. What is not acked is sent again with the same identity, after a NACK, a timeout or a new
connection. At most a window of batches and bytes is unacked, beside gaps: the one that an ack lies in is sent
whatever the window holds. While something is unacked on a live connection,
there is a timer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum

import msgspec

from geartrain.delivery.rtt import RoundTrips
from geartrain.delivery.sender_events import (
    Acked,
    CompareAck,
    Doubt,
    Event,
    Examine,
    Held,
    ReadAgain,
    Renew,
    Renumbered,
    SchemasRefused,
    SendBatch,
    SendHello,
    Sending,
    SendSchemas,
    Silent,
    Welcomed,
)
from geartrain.wire.digest import FIRST_DIGEST
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Offer, Welcome


class Handshake(Enum):
    """When the sender asks the receiver before it sends.

    EPOCH: once, for an epoch that is not known to be open; a welcome opens it. CONNECTION: on every
    connection, and whenever the receiver is silent or its answer leaves a doubt; any answer that says where
    it stands opens the stream. The second is for receivers that may be away for long.
    """

    EPOCH = 1
    CONNECTION = 2


class SenderPolicy(msgspec.Struct, frozen=True):
    """How a sender works; all times in seconds.

    window, window_bytes: unacked batches and bytes, beside the gaps that follow on them; resend_s,
    resend_s_max: the resend timer, doubling up to the second; probe_s_min: an ack is not overdue before this;
    silence_s: a connection on which nothing is heard for so long is given up; digest_retries_max: refusals of
    one digest before the batch is examined; handshake: when it asks; has_schemas: whether the schemas can be
    sent again.
    """

    window: int = 64
    window_bytes: int = 4 << 20
    resend_s: float = 2.0
    resend_s_max: float = 30.0
    probe_s_min: float = math.inf
    silence_s: float = math.inf
    digest_retries_max: int = 3
    handshake: Handshake = Handshake.EPOCH
    has_schemas: bool = True


class Standing(msgspec.Struct, frozen=True):
    """Where a stream stands in the store: batches (acked_seq, last_seq] of an epoch wait for their acks."""

    epoch: bytes
    acked_seq: int = 0
    acked_digest: bytes = FIRST_DIGEST
    last_seq: int = 0
    ordinal: int = 1


class _Flight(msgspec.Struct, frozen=True):
    """A batch that was sent and is not acked."""

    size: int
    digest: bytes
    is_gap: bool


class Sender:
    """The state of one stream. `counters`: what happened since the driver last took them."""

    def __init__(
        self,
        policy: SenderPolicy,
        flow: str,
        standing: Standing,
        *,
        is_open: bool = False,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`is_open`: whether the epoch is known to be open; `jitter`: a factor for the pause after a
        hello.
        """
        self._policy, self._flow, self._jitter = policy, flow, jitter
        self._asks_often = policy.handshake is Handshake.CONNECTION
        self._round_trips = RoundTrips(policy.probe_s_min, policy.resend_s)
        self._events: deque[Event] = deque()
        self.counters: dict[str, int] = {}
        self._is_connected = False
        self._progress_s = self._heard_s = self._hello_s = self._asked_s = -math.inf
        self._resend_pause_s = self._hello_pause_s = policy.resend_s
        self._stand_at(standing)
        self.is_open = is_open
        """Whether batches may be sent: the receiver is known to have this epoch open."""

    def _stand_at(self, standing: Standing) -> None:
        self.epoch, self.ordinal = standing.epoch, standing.ordinal
        self.acked_seq, self.acked_digest = standing.acked_seq, standing.acked_digest
        self.last_seq = standing.last_seq
        self.sent_seq = self._sent_seq_max = standing.acked_seq
        """The last batch sent in this pass."""
        self._flights: dict[int, _Flight] = {}
        self._try_s = -math.inf
        self.held_seq = 0
        """The batch that the receiver cannot take yet; 0 for none."""
        self._inside_seq = 0
        self._has_sent = self._is_hello_ready = self._is_probe_ready = self._are_schemas_due = False
        self._refused, self._rewound = (0, 0), (0, -math.inf)
        self._release()

    # What the driver says

    def connected(self, now_s: float) -> None:
        """A connection was made: all that is unacked is sent again on it."""
        self._is_connected, self._has_sent = True, False
        self._rewind(self.acked_seq)
        self._round_trips.clear()
        self._progress_s = self._heard_s = now_s
        self._resend_pause_s = self._hello_pause_s = self._policy.resend_s
        if self._asks_often:
            self.is_open = False
        self._hello_s, self._is_probe_ready = now_s, False
        self._release()

    def disconnected(self) -> None:
        """The connection has ended: no timer runs, and nothing is to be sent."""
        self._is_connected = False

    def committed(self, last_seq: int) -> None:
        """The store holds batches up to this one."""
        self.last_seq = max(self.last_seq, last_seq)

    def replaced(self, first_seq: int, last_seq: int) -> None:
        """A gap now stands in the store for these batches."""
        for seq in [seq for seq in self._flights if first_seq <= seq <= last_seq]:
            del self._flights[seq]
        if first_seq <= self.held_seq <= last_seq:
            self._release()

    def renewed(self, standing: Standing, now_s: float) -> None:
        """The store has begun a new epoch: nothing that was said of the one before counts any more."""
        self._events.clear()
        self._stand_at(standing)
        self._round_trips.clear()
        self.is_open = False
        self._hello_s = self._progress_s = self._heard_s = now_s

    def ask(self, now_s: float) -> None:
        """Have the receiver say where it stands, from this time on, before anything else is sent."""
        self.is_open, self._hello_s, self._is_hello_ready = False, now_s, False

    # What is to be sent

    def next_to_send(self, now_s: float) -> Sending | None:
        """What to send now, if anything."""
        if not self._is_connected:
            return None
        if not self.is_open:
            return self._next_hello(now_s)
        if self._are_schemas_due:
            self._are_schemas_due = False
            return SendSchemas()
        if self._is_probe_ready:
            self._is_probe_ready = False
            if self.sent_seq > self.acked_seq:
                return SendBatch(self.epoch, self.acked_seq, is_probe=True)
        if self._inside_seq:
            inside_seq, self._inside_seq = self._inside_seq, 0
            return SendBatch(self.epoch, inside_seq, gap_only=True, is_inside=True)
        last_seq = self.held_seq - (now_s < self._try_s) if self.held_seq else self.last_seq
        if self.sent_seq < last_seq:
            return SendBatch(self.epoch, self.sent_seq, gap_only=not self.has_room)
        return None

    def _next_hello(self, now_s: float) -> SendHello | None:
        if not self._is_hello_ready and now_s < self._hello_s:
            return None
        if self._asks_often and self.last_seq <= self.acked_seq:
            return None  # nothing is there to be opened for
        self._is_hello_ready = False
        self._hello_s = now_s + self._hello_pause_s * self._jitter()
        self._hello_pause_s = min(self._hello_pause_s * 2, self._policy.resend_s_max)
        self._count("hellos_sent")
        return SendHello(self.ordinal)

    @property
    def has_room(self) -> bool:
        """Whether the window takes another batch."""
        taken = [flight for flight in self._flights.values() if not flight.is_gap]
        return len(taken) < self._policy.window and (
            not taken or sum(flight.size for flight in taken) < self._policy.window_bytes
        )

    def sent(
        self, sending: SendBatch, seq: int, size: int, digest: bytes, now_s: float, *, is_gap: bool = False
    ) -> bool:
        """Note the batch that was read for `sending`, before it is published. False where it is out of date
        and must not be: an ack, a NACK or a new epoch has come while it was read.
        """
        if sending.epoch != self.epoch or not self.is_open or seq <= self.acked_seq:
            return False
        if not (sending.is_probe or sending.is_inside) and sending.after_seq != self.sent_seq:
            return False
        if sending.gap_only and not is_gap:
            return False
        if not self.is_waiting:
            self._progress_s = self._heard_s = now_s
        self._count("batches_sent_again", seq <= self._sent_seq_max)
        self._flights[seq] = _Flight(size, digest, is_gap)
        self.sent_seq, self._has_sent = max(self.sent_seq, seq), True
        return True

    def published(self, seq: int, now_s: float) -> None:
        """Note that the connection has taken the batch: its round trip begins."""
        if seq > self.acked_seq:
            self._round_trips.sent(seq, now_s, again=seq <= self._sent_seq_max)
        self._sent_seq_max = max(self._sent_seq_max, seq)

    def digest_at(self, seq: int) -> bytes:
        """The running digest after an unacked batch that was sent, or after the last acked one; else
        empty.
        """
        if seq == self.acked_seq:
            return self.acked_digest
        flight = self._flights.get(seq)
        return b"" if flight is None else flight.digest

    @property
    def is_waiting(self) -> bool:
        """Whether an ack is due on this connection, even where all is about to be sent again."""
        return self._has_sent and max(self._sent_seq_max, self.sent_seq) > self.acked_seq

    # What has happened

    def next_event(self) -> Event | None:
        """The next thing that the driver has to do or to know, oldest first."""
        return self._events.popleft() if self._events else None

    # The time

    def get_timer(self) -> float | None:
        """When `handle_timer` is due, on the clock of `now_s`; None where nothing is waited for."""
        if not self._is_connected:
            return None
        due_s = math.inf
        if self.is_waiting or not self.is_open:
            due_s = self._heard_s + self._policy.silence_s
        if not self.is_open:
            if not self._is_hello_ready and (not self._asks_often or self.last_seq > self.acked_seq):
                due_s = min(due_s, self._hello_s)
        elif self.sent_seq < self.held_seq and self._try_s > -math.inf:
            due_s = min(due_s, self._try_s)
        if self.is_open and self.sent_seq > self.acked_seq:
            due_s = min(due_s, self._progress_s + self._resend_pause_s)
            if (probe_s := self._round_trips.due_s) is not None and not self._is_probe_ready:
                due_s = min(due_s, probe_s)
        return None if math.isinf(due_s) else due_s

    def handle_timer(self, now_s: float) -> None:
        """Do what is due at this time."""
        if not self._is_connected:
            return
        if (self.is_waiting or not self.is_open) and now_s >= self._heard_s + self._policy.silence_s:
            self._heard_s = now_s
            self._events.append(Silent())
        elif not self.is_open:
            self._is_hello_ready = self._is_hello_ready or now_s >= self._hello_s
            return
        if self._try_s > -math.inf and now_s >= self._try_s:
            self._try_s, self._progress_s = -math.inf, now_s
        if self.sent_seq > self.acked_seq:
            probe_s = self._round_trips.due_s
            if now_s >= self._progress_s + self._resend_pause_s:
                self.resend(now_s)
            elif probe_s is not None and now_s >= probe_s and not self._is_probe_ready:
                self._round_trips.probed(now_s)
                self._count("probes")
                self._is_probe_ready = True

    def resend(self, now_s: float) -> None:
        """Send all that is unacked again, or first ask whether the receiver is there."""
        self._count("resends")
        self._progress_s = now_s
        if self._asks_often:
            self.ask(now_s)
            return
        self._resend_pause_s = min(self._resend_pause_s * 2, self._policy.resend_s_max)
        self._rewind(self.acked_seq)

    def _rewind(self, seq: int) -> None:
        """Go on behind `seq`."""
        self.sent_seq = seq
        for one in [one for one in self._flights if one > seq]:
            del self._flights[one]

    # What was heard

    def receive_control(self, control: Control, now_s: float) -> bool:
        """Take an answer; False where it is of another flow or epoch, which is counted."""
        if control.flow != self._flow or control.epoch != self.epoch:
            self._count("acks_of_others")
            if self._asks_often and control.flow == self._flow and not any(control.epoch):
                self._doubt(now_s)  # a receiver that has just come, and has nothing yet
            return False
        self._heard_s = now_s
        if self._asks_often:
            self._hello_pause_s = self._policy.resend_s
        if isinstance(control, Ack):
            self._on_ack(control, now_s)
        elif isinstance(control, Nack):
            self._on_nack(control, now_s)
        elif isinstance(control, Welcome):
            self._on_welcome(control, now_s)
        else:
            self._on_offer(control, now_s)
        return True

    def _on_ack(self, ack: Ack, now_s: float) -> None:
        if ack.seq == self.acked_seq and self._asks_often:
            self._go_on_behind(ack.seq, now_s)
        elif ack.seq <= self.acked_seq:
            self._count("acks_stale")
        elif ack.seq > self.last_seq:
            self._refuse_ack(ack, Doubt.ACK_BEYOND)
        elif ack.seq in self._flights:
            self.compared(ack, ack.seq, self._flights[ack.seq].digest, now_s)
        else:
            self._events.append(CompareAck(ack))

    def compared(self, ack: Ack, seq: int, digest: bytes, now_s: float) -> None:
        """Take an ack, given the batch that the store holds for its seq, or the end of the gap that stands
        there; seq is 0 where it holds neither.
        """
        if ack.epoch != self.epoch or ack.seq <= self.acked_seq:
            self._count("acks_stale")
        elif seq > ack.seq:
            # It was sent before it was dropped. The gap goes there too, and its end is what can be compared.
            # Batches before the gap may fill the window for ever, since no ack names them: it does not wait.
            self._count("acks_inside_gaps")
            if seq not in self._flights:
                self._inside_seq = ack.seq
        elif seq < ack.seq or digest != ack.digest:
            self._refuse_ack(ack, Doubt.ACK_DIFFERS)
        else:
            self._take_ack(ack, now_s)

    def _take_ack(self, ack: Ack, now_s: float) -> None:
        self.acked_seq, self.acked_digest = ack.seq, ack.digest
        self.sent_seq = max(self.sent_seq, ack.seq)
        for seq in [seq for seq in self._flights if seq <= ack.seq]:
            del self._flights[seq]
        if self._inside_seq <= ack.seq:
            self._inside_seq = 0
        self._progress_s, self._resend_pause_s = now_s, self._policy.resend_s
        self._count("probes_needless", self._round_trips.acked(ack.seq, now_s))
        self._rewound = (0, -math.inf)
        if self.held_seq <= ack.seq:
            self._release()
        if self._asks_often:
            self.is_open = True
        self._events.append(Acked(ack.seq, ack.digest))

    def _refuse_ack(self, ack: Ack, doubt: Doubt) -> None:
        self._count("ack_refused")
        self._events.append(Renew(doubt, ack.seq, self.ordinal + 1))

    def _on_nack(self, nack: Nack, now_s: float) -> None:
        self._count("nacks")
        if nack.reason is NackReason.CLOSED and not self._asks_often:
            self._count("epoch_closed")
            self._events.append(Renew(Doubt.CLOSED, nack.seq, self.ordinal + 1))
        elif self._asks_often and (nack.reason is NackReason.CLOSED or nack.seq <= self.acked_seq):
            self._doubt(now_s)
        elif nack.reason is NackReason.DIGEST and self._on_digest_refused(nack):
            return
        elif nack.reason is NackReason.HOLD:
            self._hold(nack.seq, now_s)
        elif nack.reason is NackReason.NEED_SCHEMA and not self._policy.has_schemas:
            self._count("schemas_refused")
            self._events.append(SchemasRefused(nack.seq))
            self.ask(now_s + self._policy.resend_s_max)
        else:
            if nack.reason is NackReason.NEED_SCHEMA:
                self._count("schemas_sent_again")
                self._are_schemas_due = True
            self._go_on_behind(nack.seq - 1, now_s)

    def _hold(self, seq: int, now_s: float) -> None:
        """Keep a batch that the receiver cannot take yet, and all behind it; try that one again later."""
        if not self.acked_seq < seq <= self.last_seq:
            self._count("acks_stale")
            return
        self._count("holds")
        if seq != self.held_seq:
            self._events.append(Held(seq))
        self.held_seq, self._try_s = seq, now_s + self._policy.resend_s_max
        if self.sent_seq >= seq:
            self._rewind(seq - 1)

    def _release(self) -> None:
        self.held_seq, self._try_s = 0, -math.inf

    def _on_digest_refused(self, nack: Nack) -> bool:
        """Whether the batch was refused so often that it has to be examined."""
        self._count("digests_refused")
        seq, times = self._refused
        self._refused = (nack.seq, times + 1 if seq == nack.seq else 1)
        if self._refused[1] <= self._policy.digest_retries_max:
            self._events.append(ReadAgain())
            return False
        times, self._refused = self._refused[1], (0, 0)
        self._events.append(Examine(nack.seq, times))
        return True

    def intact(self, examined: Examine) -> None:
        """The stored bytes are as they were committed: the receiver knows another history."""
        self._events.append(Renew(Doubt.DIGEST_REFUSED, examined.seq, self.ordinal + 1, times=examined.times))

    def damaged(self, first_seq: int, last_seq: int) -> None:
        """A gap now stands for batches that were damaged: it is sent in its turn."""
        self.replaced(first_seq, last_seq)
        if first_seq <= self.sent_seq:
            self._rewind(max(first_seq - 1, self.acked_seq))

    def _go_on_behind(self, seq: int, now_s: float) -> None:
        """The receiver has all up to `seq`, and lacks what follows."""
        was_open, seq = self.is_open, max(seq, self.acked_seq)
        self._release()
        if self._asks_often:
            self.is_open, self._progress_s = True, now_s
        # A lost batch brings a NACK for each one behind it: the first has set the sending back already.
        rewound, then_s = self._rewound
        again = was_open and rewound != 0 and seq + 1 >= rewound
        if again and now_s - then_s < self._policy.resend_s / 4:
            return
        if seq < self.sent_seq:
            self._rewind(seq)
            self._rewound = (seq + 1, now_s)

    def _doubt(self, now_s: float) -> None:
        """Ask at once where the receiver stands, but not more often than a quarter of the resend timer."""
        if now_s - self._asked_s >= self._policy.resend_s / 4:
            self._asked_s = now_s
            self.ask(now_s)

    def _on_welcome(self, welcome: Welcome, now_s: float) -> None:
        if self.is_open:
            self._count("acks_stale")
            return
        self.is_open, self._progress_s = True, now_s
        self._release()
        self._events.append(Welcomed(welcome))

    def _on_offer(self, offer: Offer, now_s: float) -> None:
        if offer.ordinal <= self.ordinal or (self.is_open and not self._asks_often):
            self._count("acks_stale")
        elif self.acked_seq:
            self._events.append(Renew(Doubt.RECEIVER_LOST, self.acked_seq, offer.ordinal))
        else:
            self.ordinal = offer.ordinal
            self.ask(now_s)
            self._events.append(Renumbered(offer.ordinal))

    def _count(self, name: str, count: int = 1) -> None:
        if count:
            self.counters[name] = self.counters.get(name, 0) + count
