"""A sender and a receiver with a bad channel between them, on virtual time."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from itertools import count

from geartrain.delivery.receiver import (
    Arrival,
    DigestRefused,
    Missing,
    NackPace,
    Next,
    Receiver,
    Repeated,
    WaitingBudget,
)
from geartrain.delivery.sender import Handshake, Sender, SenderPolicy, Standing
from geartrain.delivery.sender_events import Acked, CompareAck, ReadAgain, SendBatch, SendHello
from geartrain.wire.codec import decode_envelope, decode_header, encode_envelope, encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import Ack, BatchKind, Control, Envelope, Header, Nack, NackReason

FLOW, DEVICE, EPOCH = "fleet", "d1", b"epoch..8"
POLICY = SenderPolicy(window=4, window_bytes=1 << 20, resend_s=1.0, resend_s_max=8.0, probe_s_min=0.02)


@dataclass(frozen=True)
class Batch:
    """A committed batch."""

    seq: int
    header: bytes
    body: bytes
    digest: bytes


def batches(last_seq: int, epoch: bytes = EPOCH) -> list[Batch]:
    """The batches of an epoch, chained by digest."""
    made, digest = [], FIRST_DIGEST
    for seq in range(1, last_seq + 1):
        header, body = encode_header(Header(BatchKind.DATA, FLOW, DEVICE, epoch, seq)), b"rows of %d" % seq
        digest = next_digest(digest, header, body)
        made.append(Batch(seq, header, body, digest))
    return made


def arrival(batch: Batch, *, digest: bytes | None = None, oldest_seq: int = 1) -> Arrival:
    """A batch as the receiver gets it."""
    envelope = Envelope(batch.header, batch.body, digest or batch.digest, oldest_seq)
    return Arrival(decode_header(batch.header), envelope, encode_envelope(envelope))


@dataclass
class Troubles:
    """Chances of what befalls a message, and how often an end or the connection breaks, until `until_s`."""

    lose: float = 0.0
    double: float = 0.0
    latency_s: float = 0.05
    flip: float = 0.0
    breaks: int = 0
    restarts: int = 0
    until_s: float = 30.0


@dataclass
class Link:
    """One run. `accepted`: what the receiver has made durable, in its order."""

    seed: int
    last_seq: int
    troubles: Troubles
    handshake: Handshake = Handshake.EPOCH
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._held = batches(self.last_seq)
        self._acked = (0, FIRST_DIGEST)
        self._digest = FIRST_DIGEST
        self._numbers, self.now_s, self.sendings = count(), 0.0, 0
        self._agenda: list[tuple[float, int, str, bytes | Control]] = []
        troubles, uniform = self.troubles, self._random.uniform
        for _ in range(troubles.breaks):
            self._later(uniform(0, troubles.until_s), "break")
        for _ in range(troubles.restarts):
            self._later(uniform(0, troubles.until_s), self._random.choice(("new sender", "new receiver")))
        self._begin_sender()
        self._begin_receiver()

    def _later(self, at_s: float, what: str, message: bytes | Control = b"") -> None:
        heapq.heappush(self._agenda, (at_s, next(self._numbers), what, message))

    def _begin_sender(self) -> None:
        # A link that flips one batch often enough ends the epoch. Here it is to arrive all the same.
        policy = SenderPolicy(4, 1 << 20, 1.0, 8.0, 0.02, digest_retries_max=1_000, handshake=self.handshake)
        standing = Standing(EPOCH, *self._acked, self.last_seq)
        self.sender = Sender(policy, FLOW, standing, is_open=self.handshake is Handshake.EPOCH)
        self.sender.connected(self.now_s)

    def _begin_receiver(self) -> None:
        budget = WaitingBudget(self._random.choice((0, 2, 10)), 1 << 20)
        self.receiver = Receiver(EPOCH, budget, len(self.accepted), self._digest)
        self._pace = NackPace(0.1)

    def run(self) -> None:
        """Run until all is acked; fails where an end waits for nothing, or for ever."""
        while self.sender.acked_seq < self.last_seq:
            self._send()
            timer_s = self.sender.get_timer()
            assert timer_s is not None or self._agenda, "nothing is due, and not all is acked"
            next_s = min(
                self._agenda[0][0] if self._agenda else math.inf, math.inf if timer_s is None else timer_s
            )
            assert next_s < 1_000, "it takes for ever"
            self.now_s = max(self.now_s, next_s)
            if self._agenda and self._agenda[0][0] <= self.now_s:
                _, _, what, message = heapq.heappop(self._agenda)
                self._happen(what, message)
            else:
                self.sender.handle_timer(self.now_s)
                assert self.sender.get_timer() != timer_s or self.sender.next_to_send(self.now_s), (
                    "a timer that stays due"
                )

    def _happen(self, what: str, message: bytes | Control) -> None:
        if what == "up" and isinstance(message, bytes):
            self._receive(message)
        elif what == "down" and not isinstance(message, bytes):
            self.sender.receive_control(message, self.now_s)
            self._note()
        elif what == "break":
            self.sender.disconnected()
            assert self.sender.get_timer() is None
            self._agenda = [one for one in self._agenda if one[2] not in ("up", "down")]
            heapq.heapify(self._agenda)
            self._later(self.now_s + self._random.uniform(0, 2), "connect")
        elif what == "connect":
            self.sender.connected(self.now_s)
        elif what == "new sender":
            self._begin_sender()
        elif what == "new receiver":
            self._begin_receiver()

    def _carry(self, what: str, message: bytes | Control) -> None:
        bad, random_ = self.now_s < self.troubles.until_s, self._random
        copies = 1
        if bad:
            copies = (
                0 if random_.random() < self.troubles.lose else 1 + (random_.random() < self.troubles.double)
            )
        for _ in range(copies):
            latency_s = random_.uniform(0.001, self.troubles.latency_s) if bad else 0.005
            self._later(self.now_s + latency_s, what, message)

    def _send(self) -> None:
        while (sending := self.sender.next_to_send(self.now_s)) is not None:
            if isinstance(sending, SendHello):
                header = encode_header(Header(BatchKind.HELLO, FLOW, DEVICE, EPOCH, 0, ordinal=1))
                envelope = Envelope(header, b"", next_digest(FIRST_DIGEST, header, b""), 1)
                self._carry("up", encode_envelope(envelope))
            elif isinstance(sending, SendBatch):
                if sending.gap_only:
                    return
                batch = self._held[sending.after_seq]
                if self.sender.sent(sending, batch.seq, len(batch.body), batch.digest, self.now_s):
                    self.sendings += 1
                    body = batch.body
                    if self.now_s < self.troubles.until_s and self._random.random() < self.troubles.flip:
                        body = body[:-1] + b"?"
                    envelope = Envelope(batch.header, body, batch.digest, self.sender.acked_seq + 1)
                    self._carry("up", encode_envelope(envelope))
                    self.sender.published(batch.seq, self.now_s)

    def _note(self) -> None:
        while (event := self.sender.next_event()) is not None:
            if isinstance(event, CompareAck):
                held = self._held[event.ack.seq - 1]
                self.sender.compared(event.ack, held.seq, held.digest, self.now_s)
            elif isinstance(event, Acked):
                assert event.seq <= len(self.accepted), "trimmed what was never accepted"
                if self._random.random() < 0.7:  # else a crash comes before the trim
                    self._acked = (event.seq, event.digest)
            else:
                assert isinstance(event, ReadAgain), event

    def _receive(self, payload: bytes) -> None:
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        if header.kind is BatchKind.HELLO:
            self._say_where()
            return
        self.receiver.receive_batch(Arrival(header, envelope, payload))
        while (event := self.receiver.next_event()) is not None:
            if isinstance(event, Next):
                assert event.arrival.header.seq == len(self.accepted) + 1
                self.accepted.append(event.arrival.header.seq)
                self._digest = event.arrival.digest_after
                self.receiver.accept()
                self._say_where()
            elif isinstance(event, Repeated):
                self._say_where()
            elif isinstance(event, Missing):
                self._nack(event.seq, NackReason.GAP)
            elif isinstance(event, DigestRefused):
                self._nack(event.seq, NackReason.DIGEST)

    def _say_where(self) -> None:
        if self.accepted:
            self._carry("down", Ack(FLOW, EPOCH, len(self.accepted), self._digest, 1))
        else:
            self._nack(1, NackReason.GAP)

    def _nack(self, seq: int, reason: NackReason) -> None:
        if self._pace.is_due((), EPOCH, seq, reason, self.now_s):
            self._carry("down", Nack(FLOW, EPOCH, seq, reason, 1))
