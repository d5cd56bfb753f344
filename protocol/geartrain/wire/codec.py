"""Header, envelope, schemas, gaps and what answers them as bytes and back: all on the wire but the rows.

Stands between the agent's uplink and ingest, on both ends. Guarantees: equal data gives equal bytes; decoding
arbitrary bytes raises only `WireError`, and what it returns is within the caps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geartrain.errors import SchemaError, WireError
from geartrain.schema.fields import Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.checks import (
    check_envelope,
    check_gap,
    check_header,
    check_names,
    check_schema,
    check_version,
)
from geartrain.wire.control import decode_control, encode_control
from geartrain.wire.envelope import BatchKind, Envelope, Header
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.parsing import check_size, parse
from geartrain.wire.places import (
    positions_of,
    raw_positions,
    raw_source_watermarks,
    raw_watermarks,
    source_watermarks_of,
    watermarks_of,
)

__all__ = [
    "decode_control",
    "decode_envelope",
    "decode_gap",
    "decode_header",
    "decode_schemas",
    "encode_control",
    "encode_envelope",
    "encode_gap",
    "encode_header",
    "encode_schemas",
]

_KINDS = frozenset(kind.value for kind in BatchKind)
_ERROR_CHARS_MAX = 300
"""An error quotes what was sent, which may be long."""


def encode_header(header: Header) -> bytes:
    """The header's bytes; equal headers give equal bytes. Raises `WireError` when it could not be decoded."""
    check_header(header, LIMITS)
    try:
        encoded: bytes = pb.Header(
            version=header.version,
            kind=pb.Header.Kind.ValueType(header.kind.value),
            flow=header.flow,
            device=header.device,
            epoch=header.epoch,
            seq=header.seq,
            channel=header.channel,
            schema_id=header.schema_id,
            count=header.count,
            first_number=header.first_number,
            flags=header.flags,
            watermarks=raw_watermarks(header.watermarks),
            positions=raw_positions(header.positions),
            first_seq=header.first_seq,
            digest_after=header.digest_after,
            dropped=[
                pb.Dropped(channel=channel, count=count) for channel, count in sorted(header.dropped.items())
            ],
            ordinal=header.ordinal,
            source_watermarks=raw_source_watermarks(header.source_watermarks),
            crossing=header.crossing,
            fresh=header.fresh,
        ).SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"the header of batch {header.seq} cannot be encoded: {error}") from None
    check_size(encoded, "a header", LIMITS.header_bytes_max)
    return encoded


def decode_header(data: bytes, limits: Limits = LIMITS) -> Header:
    """The header in `data`; raises `WireError`, which names the version when it is another than ours."""
    raw = parse(pb.Header, data, "a header", limits.header_bytes_max)
    check_version(raw.version)  # before all else, which may mean something else in another version
    if raw.kind not in _KINDS:
        raise WireError(f"a header is of the unknown kind {raw.kind}")
    check_names(limits, raw.watermarks, raw.positions, raw.dropped, raw.source_watermarks)
    watermarks, positions = watermarks_of(raw.watermarks), positions_of(raw.positions)
    dropped = {d.channel: d.count for d in raw.dropped}
    if len(dropped) != len(raw.dropped):
        raise WireError("a header names a channel or a split twice")
    header = Header(
        kind=BatchKind(raw.kind),
        flow=raw.flow,
        device=raw.device,
        epoch=raw.epoch,
        seq=raw.seq,
        channel=raw.channel,
        schema_id=raw.schema_id,
        count=raw.count,
        first_number=raw.first_number,
        watermarks=watermarks,
        positions=positions,
        flags=raw.flags,
        version=raw.version,
        first_seq=raw.first_seq,
        digest_after=raw.digest_after,
        dropped=dropped,
        ordinal=raw.ordinal,
        source_watermarks=source_watermarks_of(raw.source_watermarks),
        crossing=raw.crossing,
        fresh=raw.fresh,
    )
    check_header(header, limits)
    return header


def encode_envelope(envelope: Envelope) -> bytes:
    """The payload of an `up` topic; raises `WireError` when it could not be decoded."""
    check_envelope(envelope)
    encoded: bytes = pb.Envelope(
        header=envelope.header,
        body=envelope.body,
        digest=envelope.digest,
        oldest_seq=envelope.oldest_seq,
    ).SerializeToString()
    check_size(encoded, "an envelope", LIMITS.payload_bytes_max)
    return encoded


def decode_envelope(data: bytes, limits: Limits = LIMITS) -> Envelope:
    """The envelope in the payload of an `up` topic, header and body still undecoded; raises `WireError`."""
    raw = parse(pb.Envelope, data, "an envelope", limits.payload_bytes_max)
    envelope = Envelope(raw.header, raw.body, raw.digest, raw.oldest_seq)
    check_envelope(envelope)
    return envelope


def encode_gap(dropped: Sequence[tuple[int, str, int]], limits: Limits = LIMITS) -> bytes:
    """The body of a GAP: (seq, channel, rows) of what was dropped, rows that had no seq yet counted with the
    batch that declared them. Raises `WireError` when it could not be decoded, also for too many.
    """
    check_gap(dropped, limits)
    try:
        encoded: bytes = pb.Gap(
            seqs=[seq for seq, _, _ in dropped],
            channels=[channel for _, channel, _ in dropped],
            counts=[count for _, _, count in dropped],
        ).SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"a gap cannot be encoded: {error}") from None
    check_size(encoded, "the body of a gap", limits.sent_body_bytes_max)
    return encoded


def decode_gap(header: Header, body: bytes, limits: Limits = LIMITS) -> list[tuple[int, str, int]]:
    """(seq, channel, rows) of what a GAP declares as dropped, each (seq, channel) once, in that order.

    A batch that held no rows has no place in it. Raises `WireError` unless header and body agree.
    """
    raw = parse(pb.Gap, body, "the body of a gap", limits.payload_bytes_max)
    if not len(raw.seqs) == len(raw.channels) == len(raw.counts):
        raise WireError(f"gap {header.seq} has {len(raw.seqs)} seqs and {len(raw.counts)} counts")
    if len(raw.seqs) > limits.rows_max:
        raise WireError(f"gap {header.seq} has {len(raw.seqs)} counts; {limits.rows_max} are the most")
    dropped = list(zip(raw.seqs, raw.channels, raw.counts, strict=True))
    check_gap(dropped, limits)
    if dropped and not header.first_seq <= dropped[0][0] <= dropped[-1][0] <= header.seq:
        raise WireError(f"gap {header.seq} counts batches that it does not stand for")
    return dropped


def encode_schemas(schemas: Mapping[str, Schema]) -> bytes:
    """The body of a SCHEMA batch: each channel's schema; raises `WireError` when it could not be decoded."""
    for channel, schema in schemas.items():
        check_schema(channel, schema, LIMITS)
    channels = sorted(schemas)
    encoded: bytes = pb.Schemas(
        channels=channels, schemas=[schemas[channel].to_json() for channel in channels]
    ).SerializeToString()
    check_size(encoded, "the body of a schema batch", LIMITS.sent_body_bytes_max)
    return encoded


def decode_schemas(data: bytes, limits: Limits = LIMITS) -> dict[str, Schema]:
    """The schemas in the body of a SCHEMA batch, by channel; raises `WireError`."""
    raw = parse(pb.Schemas, data, "the body of a schema batch", limits.payload_bytes_max)
    if len(raw.channels) != len(raw.schemas) or len(raw.channels) > limits.names_max:
        raise WireError(f"a schema batch has {len(raw.channels)} channels and {len(raw.schemas)} schemas")
    schemas: dict[str, Schema] = {}
    for channel, text in zip(raw.channels, raw.schemas, strict=True):
        try:
            schema = Schema.from_json(text)
        except SchemaError as error:
            raise WireError(str(error)[:_ERROR_CHARS_MAX]) from None
        check_schema(channel, schema, limits)
        if channel in schemas:
            raise WireError(f"a schema batch names the channel {channel} twice")
        schemas[channel] = schema
    return schemas
