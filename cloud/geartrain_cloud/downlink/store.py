"""The outbox as its sender sees it: a port, so that tests and a simulator can hold it in memory.

Between the tables of the cloud and the broker. Guarantees asked of an implementer: each change is one durable
transaction. What is read was committed. The batches of a device follow one another without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutBatch:
    """One batch for one device, as it is sealed; digest: the running one after it."""

    seq: int
    header: bytes
    body: bytes
    digest: bytes
    count: int

    @property
    def size(self) -> int:
        """Bytes counted against caps."""
        return len(self.header) + len(self.body)


@dataclass(frozen=True, slots=True)
class Lane:
    """What the outbox holds for one device: batches (acked_seq, last_seq] of its epoch, and the running
    digest at both ends; ordinal: the number of this epoch among those of the device.
    """

    device: str
    epoch: bytes
    ordinal: int
    last_seq: int
    last_digest: bytes
    acked_seq: int
    acked_digest: bytes


class OutboxStore(Protocol):
    """The outbox of one flow. Every call raises `OutboxError`."""

    async def open(self) -> None:
        """Open it, and make durable what it holds."""
        ...

    async def changed(self) -> Sequence[Lane]:
        """The lanes with something to send, where anything was written since the last call, else none."""
        ...

    async def read(self, device: str, after_seq: int, limit: int) -> Sequence[OutBatch]:
        """Up to `limit` batches with seq > `after_seq`, in order."""
        ...

    async def replace(self, device: str, batch: OutBatch) -> None:
        """Have a gap stand for the batch of its seq."""
        ...

    async def trim(self, device: str, epoch: bytes, through_seq: int, digest: bytes) -> None:
        """Let go of the batches up to a seq, after which the running digest is `digest`."""
        ...

    async def announce(self, device: str, ordinal: int) -> Lane:
        """Give the epoch of a device another ordinal."""
        ...

    async def renew(self, device: str, epoch: bytes, ordinal: int) -> Lane:
        """Begin a new epoch with all that is not acked, numbered from 1."""
        ...

    async def count(self, counters: dict[str, int]) -> None:
        """Keep totals by name."""
        ...

    async def totals(self) -> dict[str, int]:
        """The totals that were kept."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...
