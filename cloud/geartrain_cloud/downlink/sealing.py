"""Seals rows for a device into batches of the outbox: encoded, numbered, chained by digest.

Between a micro-batch and the outbox. Guarantees: every batch fits a publish. Only the last batch of a
micro-batch holds its watermarks, so no device sees time pass before the rows that came with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from geartrain.errors import WireError
from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.body import EncodedRows, encode_rows
from geartrain.wire.codec import decode_header, encode_gap, encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Envelope, Header
from geartrain.wire.limits import LIMITS, Limits
from geartrain_cloud.downlink.store import Lane, OutBatch
from geartrain_cloud.sinks.rows import take_rows


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one batch before it has a seq."""

    channel: str
    schema_id: str
    count: int
    rows: EncodedRows


_NO_ROWS = Part("", "", 0, EncodedRows(b"", 0, 0))


def parts_of(channel: str, schema: Schema, rows: ColumnBatch, limits: Limits = LIMITS) -> Iterator[Part]:
    """`rows` in as few parts as fit; raises `WireError` for a row that fits none."""
    if len(rows) > limits.rows_max:
        yield from _halves(channel, schema, rows, limits)
        return
    try:
        encoded = encode_rows(schema, rows, limits)
    except WireError:
        if len(rows) == 1:
            raise
        yield from _halves(channel, schema, rows, limits)
    else:
        yield Part(channel, schema.schema_id, len(rows), encoded)


def _halves(channel: str, schema: Schema, rows: ColumnBatch, limits: Limits) -> Iterator[Part]:
    middle = len(rows) // 2
    yield from parts_of(channel, schema, take_rows(rows, range(middle)), limits)
    yield from parts_of(channel, schema, take_rows(rows, range(middle, len(rows))), limits)


def seal(
    flow: str, lane: Lane, parts: Sequence[Part], before: Mapping[str, int], after: Mapping[str, int]
) -> list[OutBatch]:
    """The batches that follow on `lane`; the last moves the watermarks from `before` to `after`."""
    made: list[OutBatch] = []
    digest = lane.last_digest
    parts = parts or [_NO_ROWS]
    for number, part in enumerate(parts, 1):
        header = encode_header(
            Header(
                BatchKind.DATA,
                flow,
                lane.device,
                lane.epoch,
                lane.last_seq + number,
                part.channel,
                part.schema_id,
                part.count,
                part.rows.first_number,
                after if number == len(parts) else before,
                flags=part.rows.flags,
            )
        )
        digest = next_digest(digest, header, part.rows.body)
        made.append(OutBatch(lane.last_seq + number, header, part.rows.body, digest, part.count))
    return made


def is_intact(before: bytes, batch: OutBatch) -> bool:
    """Whether a batch is as it was sealed; `before`: the running digest before it, empty if not known."""
    return not before or is_gap(batch) or next_digest(before, batch.header, batch.body) == batch.digest


def is_gap(batch: OutBatch) -> bool:
    """Whether it stands for one that was damaged."""
    try:
        return decode_header(batch.header).kind is BatchKind.GAP
    except WireError:
        return False


def gap_for(flow: str, lane: Lane, batch: OutBatch) -> OutBatch:
    """What is sent in the place of a batch that the disk has damaged: how many rows are lost with it."""
    try:
        header = decode_header(batch.header)
        channel, marks = header.channel, header.watermarks
    except WireError:
        channel, marks = "", {}
    body = encode_gap([(batch.seq, channel or "unknown", batch.count)] if batch.count else [])
    header = Header(
        BatchKind.GAP,
        flow,
        lane.device,
        lane.epoch,
        batch.seq,
        watermarks=marks,
        first_seq=batch.seq,
        digest_after=batch.digest,
    )
    return OutBatch(batch.seq, encode_header(header), body, batch.digest, 0)


def envelope_of(lane: Lane, batch: OutBatch) -> Envelope:
    """A batch as it is published."""
    digest = next_digest(FIRST_DIGEST, batch.header, batch.body) if is_gap(batch) else batch.digest
    return Envelope(batch.header, batch.body, digest, lane.acked_seq + 1)


def hello(flow: str, lane: Lane) -> Envelope:
    """The question that opens an epoch, and where it is held from."""
    first = lane.acked_seq + 1
    who = (flow, lane.device, lane.epoch)
    header = encode_header(Header(BatchKind.HELLO, *who, 0, ordinal=lane.ordinal, first_seq=first))
    return Envelope(header, b"", next_digest(FIRST_DIGEST, header, b""), first)


def rewriter(flow: str, lane: Lane) -> Callable[[OutBatch, bytes], OutBatch]:
    """What makes, of a batch of an older epoch and the digest before it, one of `lane`, which is new."""
    state = replace(lane, last_seq=0, last_digest=FIRST_DIGEST)

    def rewrite(old: OutBatch, before: bytes) -> OutBatch:
        nonlocal state
        seq = state.last_seq + 1
        if is_gap(old) or not is_intact(before, old):
            # No batch of this seq was ever sealed: any digest serves that follows from what was before.
            after = next_digest(state.last_digest, b"", old.header)
            made = gap_for(flow, lane, replace(old, seq=seq, digest=after))
        else:
            sealed = decode_header(old.header)
            header = encode_header(msgspec.structs.replace(sealed, epoch=lane.epoch, seq=seq))
            digest = next_digest(state.last_digest, header, old.body)
            made = OutBatch(seq, header, old.body, digest, old.count)
        state = replace(state, last_seq=seq, last_digest=made.digest)
        return made

    return rewrite
