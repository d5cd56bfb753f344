"""One epoch of one device in one flow: what has been appended of it, and what waits beyond a gap.

Stands between the decoded envelope and the log. Guarantees: batches leave it in seq order, each once, and
only with the digest that their own bytes and the batch before them give; what waits is bounded in batches and
bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Envelope, Header

DIGESTS_AT_HAND = 256
"""Digests of the newest batches kept in memory; older ones are asked of the ledger."""


@dataclass(frozen=True, slots=True)
class Arrival:
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


class Place(Enum):
    """Where a batch stands in its epoch: already appended, next in order, or beyond a gap."""

    PAST = 1
    NEXT = 2
    BEYOND = 3


@dataclass(slots=True)
class WaitingBudget:
    """Room for what waits: at most `batches_max` of one epoch, `bytes_max` payload bytes of all together."""

    batches_max: int
    bytes_max: int
    bytes_used: int = 0


@dataclass(slots=True)
class Lineage:
    """One epoch: `seq` and `digest` are those of the last batch appended; schema_asks: how often the device
    was asked for the schema of the next one.
    """

    epoch: bytes
    budget: WaitingBudget
    seq: int = 0
    digest: bytes = FIRST_DIGEST
    _waiting: dict[int, Arrival] = field(default_factory=dict)
    _recent: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    _claim: bytes = b""
    schema_asks: int = 0

    @property
    def expected(self) -> int:
        """The seq of the next batch in order."""
        return self.seq + 1

    def place(self, arrival: Arrival) -> Place:
        """Where the batch stands; a gap is next where it stands for the next batch, among others."""
        if arrival.header.seq < self.expected:
            return Place.PAST
        return Place.NEXT if arrival.first_seq <= self.expected else Place.BEYOND

    def fits(self, arrival: Arrival) -> bool:
        """Whether the digest is that of the batch before and the next one's own bytes; a gap has its own."""
        if arrival.header.kind is BatchKind.GAP:
            return arrival.has_own_digest
        envelope = arrival.envelope
        return next_digest(self.digest, envelope.header, envelope.body) == envelope.digest

    def advance(self, arrival: Arrival) -> None:
        """Take the batch as the last one appended."""
        if arrival.first_seq < arrival.header.seq:
            self.skip_to(arrival.header.seq)
        self.seq, self.digest = arrival.header.seq, arrival.digest_after
        self.schema_asks = 0
        self._recent[self.seq] = self.digest
        if len(self._recent) > DIGESTS_AT_HAND:
            self._recent.popitem(last=False)

    def recent_digest(self, seq: int) -> bytes | None:
        """The running digest after batch `seq`, where it is still at hand."""
        return self._recent.get(seq)

    def wait(self, arrival: Arrival) -> bool:
        """Keep a batch that stands beyond a gap; False where there is no room for it."""
        seq, size = arrival.header.seq, len(arrival.payload)
        self._forget(seq)
        if (
            len(self._waiting) >= self.budget.batches_max
            or self.budget.bytes_used + size > self.budget.bytes_max
        ):
            return False
        self._waiting[seq] = arrival
        self.budget.bytes_used += size
        return True

    def take(self, seq: int) -> Arrival | None:
        """Take batch `seq` out of those that wait."""
        arrival = self._waiting.get(seq)
        self._forget(seq)
        return arrival

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def skip_to(self, seq: int) -> int:
        """Make `seq` the next in order and forget what waits before it; returns how many that were."""
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

    def _forget(self, seq: int) -> None:
        if arrival := self._waiting.pop(seq, None):
            self.budget.bytes_used -= len(arrival.payload)

    def claims_loss(self, arrival: Arrival) -> bool:
        """Whether the device says, for the second time in the same bytes, that what is missing is gone for
        good.

        `oldest_seq` is outside the digest, and the digest before the lost batches' successor is unknown. So
        nothing vouches for one such envelope: a flipped bit would pass a gap that the device can fill. Two
        equal ones do.
        """
        seq, envelope = arrival.header.seq, arrival.envelope
        if not arrival.first_seq <= envelope.oldest_seq <= seq or arrival.first_seq <= self.expected:
            return False
        claim = next_digest(envelope.digest, envelope.header, envelope.body)
        is_second = claim == self._claim
        self._claim = claim
        return is_second
