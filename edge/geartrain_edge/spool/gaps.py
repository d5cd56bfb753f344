"""Gaps: what stands under the seqs of batches that the device no longer has.

Between the spool and the uplink. Guarantees: a gap says how many rows of which channel each batch held that
it replaces. This includes the rows that the batch had declared as dropped, so ingest can count exactly the
rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable

from geartrain.errors import WireError
from geartrain.ports.spool import SpooledBatch
from geartrain.wire.codec import decode_header, encode_gap, encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.spool.backlog import Identity

Rows = tuple[tuple[int, str, int], ...]


def make_gap(
    who: Identity,
    seqs: tuple[int, int],
    digest_after: bytes,
    rows: Rows,
    said: Header | None,
) -> SpooledBatch:
    """A gap for the batches from the first to the last of `seqs`; `rows` by (seq, channel), in that order.

    digest_after: that of the last of the batches; said: its header, whose watermarks and positions the gap
    repeats, None where it is damaged. Raises `WireError` for too many rows.
    """
    first, last = seqs
    body = encode_gap(rows)
    header = encode_header(
        Header(
            BatchKind.GAP,
            who.flow,
            who.device,
            who.epoch,
            last,
            watermarks={} if said is None else said.watermarks,
            positions={} if said is None else said.positions,
            first_seq=first,
            digest_after=digest_after,
            source_watermarks={} if said is None else said.source_watermarks,
            crossing=0 if said is None else said.crossing,
        )
    )
    return SpooledBatch(
        last, header, body, digest_after, 0, rows, first, next_digest(FIRST_DIGEST, header, body)
    )


def by_channel(rows: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    """The rows of each channel, over all seqs, in the order of the channels' names."""
    totals: dict[str, int] = {}
    for _, channel, count in rows:
        totals[channel] = totals.get(channel, 0) + count
    return dict(sorted(totals.items()))


def is_intact(previous: bytes, batch: SpooledBatch) -> bool:
    """Whether a batch still has the bytes that it was committed with. `previous`: the running digest before
    it, empty where it is not known: then a batch that is no gap cannot be told from an intact one.
    """
    if batch.first_seq:
        return next_digest(FIRST_DIGEST, batch.header, batch.body) == batch.seal
    return not previous or next_digest(previous, batch.header, batch.body) == batch.digest


def replacement(who: Identity, batch: SpooledBatch) -> SpooledBatch:
    """A gap that stands for one stored batch, whose header may be damaged: it then moves no watermark."""
    seqs = (batch.first_seq or batch.seq, batch.seq)
    return make_gap(who, seqs, batch.digest, batch.rows, header_of(batch))


def header_of(batch: SpooledBatch) -> Header | None:
    """The header of a stored batch, None where it is damaged."""
    try:
        return decode_header(batch.header)
    except WireError:
        return None
