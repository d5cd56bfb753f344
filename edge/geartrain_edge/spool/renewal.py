"""A new epoch for a spool that was copied or restored: what is not acked is queued again under it.

The uplink uses it when ingest knows another history of this epoch. Guarantees: rows, watermarks and positions
stay as they were, and schemas and crossings on the way stay in their place. A batch that the disk has
damaged meanwhile becomes a gap, which declares its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from geartrain.ports.spool import SpooledBatch
from geartrain.wire.codec import encode_header
from geartrain.wire.digest import next_digest
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.spool.backlog import Identity
from geartrain_edge.spool.gaps import by_channel, header_of, is_intact, make_gap

FLIP = ("_agent", b"flip")
"""Where the spool keeps when its epoch was minted in place of another: JSON, microseconds."""


_MOVED = frozenset({BatchKind.DATA, BatchKind.SCHEMA, BatchKind.CROSSING})
"""What keeps its content in the new epoch."""


class Rewriter:
    """`geartrain.ports.Rewrite`: the batches of a spool, one by one, as those of another epoch."""

    def __init__(
        self,
        who: Identity,
        first: Sequence[SpooledBatch],
        acked_seq: int,
        acked_digest: bytes,
        unsaid: int = 0,
    ) -> None:
        """`who`: with the new epoch; `first`: its schema batch, and what stands right behind it; acked_seq,
        acked_digest: of the old one; unsaid: the crossing that stands for 0 in the old one's headers.
        """
        self._unsaid = unsaid
        self._who, self._schemas, self._acked_seq = who, first[0].body, acked_seq
        self._first = list(first)
        self._seq, self._digest = first[-1].seq, first[-1].digest
        self._old_seq, self._old_digest = acked_seq, acked_digest
        self.damaged: dict[str, int] = {}
        """Rows by channel of batches that were found damaged."""

    def __call__(self, old: SpooledBatch | None) -> SpooledBatch | None:
        """What takes the place of `old`; None for what is acked, and a first one that says nothing new."""
        if old is None:
            return self._first.pop(0) if self._first else None
        follows = (old.first_seq or old.seq) == self._old_seq + 1
        intact = is_intact(self._old_digest if follows else b"", old)
        self._old_seq, self._old_digest = old.seq, old.digest
        if old.seq <= self._acked_seq or (old.seq == 1 and (not intact or old.body == self._schemas)):
            return None
        header = header_of(old)
        self._seq += 1
        made = (
            self._moved(old, header)
            if intact and header is not None and header.kind in _MOVED
            else self._gap(old, header)
        )
        if not intact:
            for channel, count in by_channel(old.rows).items():
                self.damaged[channel] = self.damaged.get(channel, 0) + count
        self._digest = made.digest
        return made

    def _moved(self, old: SpooledBatch, header: Header) -> SpooledBatch:
        data = encode_header(self._renewed(header))
        digest = next_digest(self._digest, data, old.body)
        rows = tuple((self._seq, channel, count) for _, channel, count in old.rows)
        return SpooledBatch(self._seq, data, old.body, digest, old.count, rows)

    def _renewed(self, header: Header) -> Header:
        crossing = header.crossing or self._unsaid
        return replace(header, epoch=self._who.epoch, seq=self._seq, crossing=crossing)

    def _gap(self, old: SpooledBatch, header: Header | None) -> SpooledBatch:
        rows = tuple((self._seq, channel, count) for channel, count in by_channel(old.rows).items())
        # No batch of this seq was ever sealed: any digest serves that follows from what was before.
        after = next_digest(self._digest, b"", msgspec.json.encode(rows))
        return make_gap(self._who, (self._seq, self._seq), after, rows, header)


class Flip(msgspec.Struct, frozen=True):
    """When an epoch was minted in place of another, wall clock in microseconds; None: never."""

    minted_us: int | None

    @classmethod
    def of(cls, stored: bytes | None) -> Flip:
        """As it is kept under `FLIP`."""
        return cls(None if stored is None else int(msgspec.json.decode(stored, type=int)))

    def is_recent(self, now_us: int, window_s: int) -> bool:
        """Whether that was less than so many seconds ago; a clock that was set back counts as recent too."""
        return self.minted_us is not None and abs(now_us - self.minted_us) < window_s * 1_000_000
