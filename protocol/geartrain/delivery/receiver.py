"""The receiver: the numbered batches of one epoch put in order, as a state machine without I/O.

Used by ingest, and by the agent for what comes down. The driver decodes and checks who a batch is from, gives
it to `receive_batch`, and does what `next_event` says. It takes a batch in its turn with `accept`, or leaves
it with `decline`. Guarantees: batches are accepted strictly in seq order, each once, and only with the digest
that their own bytes and the batch before them give. What waits beyond a gap is bounded in batches and bytes.
A gap is passed only where the policy allows it, and the sender has said twice that it cannot fill it. The
machine needs no timer: whoever sends repeats what was not acked.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Envelope, Header, NackReason

DIGESTS_AT_HAND = 256
"""Digests of the newest batches kept in memory."""


class Arrival(msgspec.Struct, frozen=True):
    """A batch as it arrived, decoded up to its header; `payload`: its bytes on the wire."""

    header: Header
    envelope: Envelope
    payload: bytes

    @property
    def first_seq(self) -> int:
        """The seq of the batch; of a gap, the first that it stands for."""
        return self.header.first_seq or self.header.seq

    @property
    def digest_after(self) -> bytes:
        """The running digest after it."""
        return self.header.digest_after or self.envelope.digest

    @property
    def has_own_digest(self) -> bool:
        """Whether its digest is that of its bytes alone, as it must be for a gap and what is unsequenced."""
        return next_digest(FIRST_DIGEST, self.envelope.header, self.envelope.body) == self.envelope.digest


class WaitingBudget(msgspec.Struct):
    """Room for what waits: at most `batches_max` of one epoch, `bytes_max` payload bytes of all together."""

    batches_max: int
    bytes_max: int
    bytes_used: int = 0


# What has happened


class Next(msgspec.Struct, frozen=True):
    """A batch is next in order: call `accept` or `decline` before anything else.

    lost: how many batches before it the sender no longer has; was_waiting: it has waited beyond a gap.
    """

    arrival: Arrival
    lost: int = 0
    was_waiting: bool = False


class Repeated(msgspec.Struct, frozen=True):
    """A batch was accepted before. digest: the running one after the batch accepted then, None if not at
    hand.
    """

    arrival: Arrival
    digest: bytes | None


class Beyond(msgspec.Struct, frozen=True):
    """A batch stands beyond a gap, and waits if there was room for it; then `Missing` follows."""

    arrival: Arrival
    waits: bool


class Missing(msgspec.Struct, frozen=True):
    """The batch `seq` is missing, and later ones are there: ask for it."""

    seq: int


class DigestRefused(msgspec.Struct, frozen=True):
    """The batch `seq` came with a digest that does not follow: ask for it again."""

    seq: int


Event = Next | Repeated | Beyond | Missing | DigestRefused


class Receiver:
    """One epoch of one sender. `seq` and `digest` are those of the last batch accepted.

    asks: how often the driver has asked for what the next batch lacks; `accept` sets it back to 0.
    """

    def __init__(
        self,
        epoch: bytes,
        budget: WaitingBudget,
        seq: int = 0,
        digest: bytes = FIRST_DIGEST,
        *,
        passes_loss: bool = False,
    ) -> None:
        """`passes_loss`: whether batches that the sender no longer has may be passed over."""
        self.epoch, self.budget, self.seq, self.digest = epoch, budget, seq, digest
        self._passes_loss, self.asks = passes_loss, 0
        self._events: deque[Event] = deque()
        self._waiting: dict[int, Arrival] = {}
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._claim = b""
        self._next: Next | None = None

    @property
    def expected(self) -> int:
        """The seq of the next batch in order."""
        return self.seq + 1

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    # What came

    def receive_batch(self, arrival: Arrival) -> None:
        """Take a batch of this epoch, whatever its place."""
        if arrival.header.seq < self.expected:
            self._events.append(Repeated(arrival, self._recent.get(arrival.header.seq)))
        elif arrival.first_seq <= self.expected:
            self._offer(arrival, was_waiting=False)
        elif self._passes_loss and self._claims_loss(arrival):
            self._say_next(Next(arrival, arrival.first_seq - self.expected))
        else:
            waits = arrival.header.kind is not BatchKind.GAP and self._wait(arrival)
            self._events.append(Beyond(arrival, waits))
            self._events.append(Missing(self.expected))

    def _offer(self, arrival: Arrival, *, was_waiting: bool) -> None:
        if self._fits(arrival):
            self._say_next(Next(arrival, was_waiting=was_waiting))
        else:
            self._events.append(DigestRefused(self.expected))

    def _say_next(self, found: Next) -> None:
        self._next = found
        self._events.append(found)

    def _fits(self, arrival: Arrival) -> bool:
        """Whether the digest is that of the batch before and the next one's own bytes; a gap has its own."""
        if arrival.header.kind is BatchKind.GAP:
            return arrival.has_own_digest
        envelope = arrival.envelope
        return next_digest(self.digest, envelope.header, envelope.body) == envelope.digest

    def _claims_loss(self, arrival: Arrival) -> bool:
        """Whether the sender says, for the second time in the same bytes, that what is missing is gone for
        good.

        `oldest_seq` is outside the digest, and the digest before the lost batches' successor is unknown. So
        nothing vouches for one such envelope: a flipped bit would pass a gap that the sender can fill. Two
        equal ones do.
        """
        seq, envelope = arrival.header.seq, arrival.envelope
        if not arrival.first_seq <= envelope.oldest_seq <= seq:
            return False
        claim = next_digest(envelope.digest, envelope.header, envelope.body)
        is_second = claim == self._claim
        self._claim = claim
        return is_second

    # What the driver decides

    def next_event(self) -> Event | None:
        """The next thing that the driver has to decide or to answer, oldest first."""
        return self._events.popleft() if self._events else None

    def accept(self) -> int:
        """Take the batch of the last `Next` as appended; returns how many that waited before it were
        dropped.
        """
        found, self._next = self._next, None
        if found is None:
            raise RuntimeError("there is no batch to be accepted: its Next must come first")
        arrival = found.arrival
        dropped = self._pass(arrival.first_seq) if found.lost else 0
        if arrival.first_seq < arrival.header.seq:
            self._pass(arrival.header.seq)
        self.seq, self.digest, self.asks = arrival.header.seq, arrival.digest_after, 0
        self._recent[self.seq] = self.digest
        if len(self._recent) > DIGESTS_AT_HAND:
            self._recent.popitem(last=False)
        if (following := self._forget(self.expected)) is not None:
            self._offer(following, was_waiting=True)
        elif self._waiting:
            self._events.append(Missing(self.expected))
        return dropped

    def decline(self) -> None:
        """Leave the batch of the last `Next`: it has to be sent again."""
        self._next = None

    # What waits

    def _wait(self, arrival: Arrival) -> bool:
        """Keep a batch that stands beyond a gap; False where there is no room for it."""
        seq, size, budget = arrival.header.seq, len(arrival.payload), self.budget
        self._forget(seq)
        if len(self._waiting) >= budget.batches_max or budget.bytes_used + size > budget.bytes_max:
            return False
        self._waiting[seq] = arrival
        budget.bytes_used += size
        return True

    def _forget(self, seq: int) -> Arrival | None:
        """Take batch `seq` out of those that wait."""
        arrival = self._waiting.pop(seq, None)
        if arrival is not None:
            self.budget.bytes_used -= len(arrival.payload)
        return arrival

    def _pass(self, seq: int) -> int:
        """Make `seq` the next in order, and forget what waits up to it; returns how many waited before it."""
        passed = [waiting for waiting in self._waiting if waiting <= seq]
        for one in passed:
            self._forget(one)
        self.seq = seq - 1
        return sum(one < seq for one in passed)

    def clear(self) -> int:
        """Forget all that waits; returns how many batches that were."""
        count = len(self._waiting)
        for seq in list(self._waiting):
            self._forget(seq)
        return count


class NackPace:
    """Keeps the same NACK from being said again within an interval, in seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._said: dict[tuple[str, ...], tuple[bytes, int, float]] = {}

    def is_due(self, key: tuple[str, ...], epoch: bytes, seq: int, reason: NackReason, now_s: float) -> bool:
        """Whether a NACK may be said now; `key`: whom to. If so, it counts as said."""
        whole = (*key, reason.name)
        last = self._said.get(whole)
        if last is not None and last[:2] == (epoch, seq) and now_s - last[2] < self._interval_s:
            return False
        self._said[whole] = (epoch, seq, now_s)
        return True
