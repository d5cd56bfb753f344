"""The agent's durable store as a port: one transaction moves positions, state and outgoing batches together.

That one transaction is what makes a crash invisible (DESIGN 4.2): after a restart the store holds all of a
commit or nothing of it. Every call raises `SpoolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import msgspec


class SplitProgress(msgspec.Struct, frozen=True):
    """How far a split was read.

    position: where to read on; max_time: its highest event time so far, microseconds (START_OF_TIME before
    the first record); ended: a bounded split that has given its last record.
    """

    position: int
    max_time: int
    ended: bool = False


class StateSize(msgspec.Struct, frozen=True):
    """How much is kept of a step: cells, and their bytes without the keys."""

    cells: int = 0
    bytes: int = 0


class SpooledBatch(msgspec.Struct, frozen=True):
    """One outgoing batch: seq from 1, header and body as encoded, and the running digest after it.

    rows: (seq, channel, rows) that are lost with it, those that it declares as dropped among them: what a gap
    in its place has to say. first_seq: of a gap, the first seq that it stands for, else 0; seal: of a gap,
    the digest of its own bytes.
    """

    seq: int
    header: bytes
    body: bytes
    digest: bytes
    count: int
    rows: tuple[tuple[int, str, int], ...] = ()
    first_seq: int = 0
    seal: bytes = b""

    @property
    def size(self) -> int:
        """Bytes counted against the spool's cap."""
        return len(self.header) + len(self.body)


class SpoolCommit(msgspec.Struct, frozen=True):
    """What one transaction writes.

    batches: in seq order, following on the last; positions: by (source step, split name), only those that
    moved; state: by (step, encoded key), None deletes; counters: totals by name, only those that changed.
    gaps: each takes the place of the batches from its `first_seq` to its `seq`, which are committed already.
    """

    batches: Sequence[SpooledBatch] = ()
    positions: Mapping[tuple[str, str], SplitProgress] = msgspec.field(default_factory=dict)
    state: Mapping[tuple[str, bytes], bytes | None] = msgspec.field(default_factory=dict)
    counters: Mapping[str, int] = msgspec.field(default_factory=dict)
    gaps: Sequence[SpooledBatch] = ()


class SpoolTip(msgspec.Struct, frozen=True):
    """Where a spool ends: its last seq, the running digest there, and the bytes of all its batches."""

    last_seq: int
    digest: bytes
    spooled_bytes: int


Rewrite = Callable[[SpooledBatch | None], SpooledBatch | None]
"""A batch under a new epoch: given None it makes the first ones, one after the other until it gives None, at
most `FIRST_BATCHES_MAX`. Then it is given each that is held, in seq order, and gives what takes its place
(None: nothing does). Runs inside the transaction: no effects.
"""
FIRST_BATCHES_MAX = 16
"""How many batches a new epoch may have before those that are held."""


def first_batches(rewrite: Rewrite) -> Iterator[SpooledBatch]:
    """The batches with which a new epoch begins, before those that are held."""
    return islice(iter(lambda: rewrite(None), None), FIRST_BATCHES_MAX)


class SpoolImage(msgspec.Struct, frozen=True):
    """What a store holds when it is opened; `digest` is the running one after `last_seq`, `acked_digest` that
    after `acked_seq`, empty where it is not known.
    """

    epoch: bytes
    last_seq: int
    acked_seq: int
    digest: bytes
    spooled_bytes: int
    positions: Mapping[tuple[str, str], SplitProgress]
    state: Mapping[tuple[str, bytes], bytes]
    counters: Mapping[str, int]
    acked_digest: bytes = b""


class SpoolStore(Protocol):
    """The store of one (device, flow)."""

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """Open or create; `fresh_epoch` (8 bytes) is stored durably where nothing was committed yet.

        The one that stands there then may be of a time before the spool was set back to its beginning.
        Raises `SpoolError` when the store belongs to another device or flow, is damaged, or is in use.
        """
        ...

    async def commit(self, change: SpoolCommit) -> None:
        """Write `change` in one durable transaction; durable when it returns."""
        ...

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """Up to `limit` committed batches with seq > `after_seq`, in seq order."""
        ...

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` committed cells of a step as (encoded key, saved cell), in the order of their keys:
        those of `keys`, or any where that is None.
        """
        ...

    def kept(self) -> Mapping[str, StateSize]:
        """How much the last commit has left of each step's state, from what it has read anyway; empty while
        it is not open.
        """
        ...

    async def trim(self, through_seq: int) -> None:
        """Delete batches with seq <= `through_seq` and remember it as acked; durable when it returns."""
        ...

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Begin a new epoch in one durable transaction: every batch is replaced by what `rewrite` makes of
        it, numbered from 1, nothing is acked, and `change` (without batches) is written.
        """
        ...

    async def close(self) -> None:
        """Release the store."""
        ...
