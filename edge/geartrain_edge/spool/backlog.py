"""What the spool holds now, as the reading side and the uplink both see it, and the agent's counters.

The two halves of the agent meet only here. The reading side adds what it committed, the uplink removes what
it trimmed, and each wakes the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from geartrain.ports.spool import SpooledBatch, SpoolImage, SpoolTip
from geartrain.wire.digest import FIRST_DIGEST


class Identity(msgspec.Struct, frozen=True):
    """Whose batches these are."""

    device: str
    flow: str
    epoch: bytes


class Backlog:
    """Committed batches that are not trimmed yet: their seqs, (acked_seq, last_seq], and their bytes."""

    def __init__(self, image: SpoolImage, bytes_max: int = 2**63) -> None:
        """`bytes_max`: how many bytes of batches the spool may hold."""
        self.bytes_max = bytes_max
        self.last_seq, self.acked_seq, self.bytes = image.last_seq, image.acked_seq, image.spooled_bytes
        self.epoch, self.acked_digest = image.epoch, image.acked_digest
        self.lock = asyncio.Lock()
        """Held over every change of the spool, so that none is decided on what another has just replaced."""
        self.room_wanted = asyncio.Event()
        """Set while the reading side waits for a trim."""
        self.grown = asyncio.Event()
        """Set when batches were committed; the uplink alone waits for it and clears it."""
        self.shrunk = asyncio.Event()
        """Set when batches were trimmed; the reading side alone waits for it and clears it."""

    async def wait_for_room(self) -> None:
        """Return when batches were trimmed, which is done soon now; for the reading side."""
        self.room_wanted.set()
        try:
            await self.shrunk.wait()
            self.shrunk.clear()
        finally:
            self.room_wanted.clear()

    def is_full(self, part: float = 1.0) -> bool:
        """Whether it holds that part of what it may."""
        return self.bytes >= part * self.bytes_max

    def committed(self, batches: Sequence[SpooledBatch]) -> None:
        """Note batches that a durable commit has put into the spool."""
        if batches:
            self.last_seq = batches[-1].seq
            self.bytes += sum(batch.size for batch in batches)
            self.grown.set()

    def trimmed(self, through_seq: int, size_bytes: int) -> None:
        """Note that the spool no longer holds `size_bytes` up to the seq."""
        self.acked_seq = through_seq
        self.bytes -= size_bytes
        self.shrunk.set()

    def replaced(self, freed_bytes: int) -> None:
        """Note that batches gave way to gaps, which take so many bytes less."""
        self.bytes -= freed_bytes

    def renewed(self, epoch: bytes, tip: SpoolTip) -> None:
        """Note that the spool has begun a new epoch, in which nothing is acked."""
        self.epoch, self.acked_digest = epoch, FIRST_DIGEST
        self.last_seq, self.acked_seq, self.bytes = tip.last_seq, 0, tip.spooled_bytes
        self.grown.set()


class Counters:
    """Totals by name that outlive the process: every record that is discarded raises one of them."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self.totals = dict(totals)
        self._changed: set[str] = set()
        self._raised: set[str] = set()

    def add(self, name: str, count: int = 1) -> None:
        """Raise a counter."""
        if count:
            self.totals[name] = self.totals.get(name, 0) + count
            self._changed.add(name)
            self._raised.add(name)

    def take(self, counts: dict[str, int]) -> None:
        """Raise these, and empty `counts`, which go on from there."""
        for name, count in counts.items():
            self.add(name, count)
        counts.clear()

    def raised(self) -> dict[str, int]:
        """The totals raised in this process."""
        return {name: self.totals[name] for name in sorted(self._raised)}

    def changes(self) -> dict[str, int]:
        """The totals raised since the last call, for the next commit."""
        changed = {name: self.totals[name] for name in sorted(self._changed)}
        self._changed.clear()
        return changed
