"""Header, envelope, control and schemas as bytes and back: everything on the wire but the rows.

Stands between the agent's uplink and ingest, on both ends. Guarantees: equal data gives equal bytes; decoding
arbitrary bytes raises only `WireError`, and what it returns is within the caps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized

from geartrain.errors import SchemaError, WireError
from geartrain.ports.spool import SplitProgress
from geartrain.schema.fields import Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.envelope import (
    DEFLATED,
    DIGEST_BYTES,
    EPOCH_BYTES,
    VERSION,
    Ack,
    BatchKind,
    Envelope,
    Header,
    Nack,
    NackReason,
)
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.parsing import INT64_MAX, check_size, parse
from geartrain.wire.topics import check_name

_CHANNEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SCHEMA_ID = re.compile(r"[0-9a-f]{16}")
_SCHEMA_NAME_CHARS_MAX = 256
_ERROR_CHARS_MAX = 300
"""An error quotes what was sent, which may be long."""


def encode_header(header: Header) -> bytes:
    """The header's bytes; equal headers give equal bytes. Raises `WireError` when it could not be decoded."""
    _check_header(header, LIMITS)
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
            watermarks=[
                pb.Watermark(channel=channel, time=time)
                for channel, time in sorted(header.watermarks.items())
            ],
            positions=[
                pb.Position(
                    step=step, split=split, position=at.position, max_time=at.max_time, ended=at.ended
                )
                for (step, split), at in sorted(header.positions.items())
            ],
        ).SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"the header of batch {header.seq} cannot be encoded: {error}") from None
    check_size(encoded, "a header", LIMITS.header_bytes_max)
    return encoded


def decode_header(data: bytes, limits: Limits = LIMITS) -> Header:
    """The header in `data`; raises `WireError`, which names the version when it is another than ours."""
    raw = parse(pb.Header, data, "a header", limits.header_bytes_max)
    _check_version(raw.version)  # before all else, which may mean something else in another version
    if raw.kind not in (pb.Header.DATA, pb.Header.SCHEMA):
        raise WireError(f"a header is of the unknown kind {raw.kind}")
    _check_names(raw.watermarks, raw.positions, limits)
    watermarks = {w.channel: w.time for w in raw.watermarks}
    positions = {(p.step, p.split): SplitProgress(p.position, p.max_time, p.ended) for p in raw.positions}
    if len(watermarks) != len(raw.watermarks) or len(positions) != len(raw.positions):
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
    )
    _check_header(header, limits)
    return header


def encode_envelope(envelope: Envelope) -> bytes:
    """The payload of an `up` topic; raises `WireError` when it could not be decoded."""
    _check_envelope(envelope)
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
    _check_envelope(envelope)
    return envelope


def encode_control(control: Ack | Nack) -> bytes:
    """The payload of an `ack` topic; raises `WireError` when it could not be decoded."""
    _check_control(control)
    encoded: bytes
    if isinstance(control, Ack):
        ack = pb.Ack(
            flow=control.flow,
            epoch=control.epoch,
            seq=control.seq,
            digest=control.digest,
            term=control.term,
        )
        encoded = pb.Control(ack=ack).SerializeToString()
        return encoded
    nack = pb.Nack(
        flow=control.flow,
        epoch=control.epoch,
        seq=control.seq,
        reason=pb.Nack.Reason.ValueType(control.reason.value),
        term=control.term,
    )
    encoded = pb.Control(nack=nack).SerializeToString()
    return encoded


def decode_control(data: bytes, limits: Limits = LIMITS) -> Ack | Nack:
    """The ack or NACK in the payload of an `ack` topic; raises `WireError`."""
    raw = parse(pb.Control, data, "an ack", limits.payload_bytes_max)
    control: Ack | Nack
    if raw.WhichOneof("control") == "ack":
        control = Ack(raw.ack.flow, raw.ack.epoch, raw.ack.seq, raw.ack.digest, raw.ack.term)
    elif raw.WhichOneof("control") == "nack":
        if raw.nack.reason not in (pb.Nack.GAP, pb.Nack.DIGEST, pb.Nack.CLOSED):
            raise WireError(f"a NACK has the unknown reason {raw.nack.reason}")
        reason = NackReason(raw.nack.reason)
        control = Nack(raw.nack.flow, raw.nack.epoch, raw.nack.seq, reason, raw.nack.term)
    else:
        raise WireError("a payload on an ack topic is neither an ack nor a NACK")
    _check_control(control)
    return control


def encode_schemas(schemas: Mapping[str, Schema]) -> bytes:
    """The body of a SCHEMA batch: each channel's schema; raises `WireError` when it could not be decoded."""
    for channel, schema in schemas.items():
        _check_schema(channel, schema, LIMITS)
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
        _check_schema(channel, schema, limits)
        if channel in schemas:
            raise WireError(f"a schema batch names the channel {channel} twice")
        schemas[channel] = schema
    return schemas


def _check_version(version: int) -> None:
    if version != VERSION:
        raise WireError(f"a batch has wire version {version}; this program speaks version {VERSION} only")


def _check_names(watermarks: Sized, positions: Sized, limits: Limits) -> None:
    if max(len(watermarks), len(positions)) > limits.names_max:
        raise WireError(f"a header has more than {limits.names_max} watermarks or positions")


def _check_header(header: Header, limits: Limits) -> None:
    _check_version(header.version)
    _check_names(header.watermarks, header.positions, limits)
    if not 0 <= header.count <= limits.rows_max:
        raise WireError(f"a batch has {header.count} rows; {limits.rows_max} are the most")
    check_name("device", header.device)
    check_name("flow", header.flow)
    _check_epoch(header.epoch)
    _check_seq(header.seq)
    if header.channel:
        _check_channel(header.channel)
    elif header.count:
        raise WireError(f"batch {header.seq} has rows but no channel")
    if header.schema_id and not _SCHEMA_ID.fullmatch(header.schema_id):
        raise WireError(
            f"batch {header.seq}: a schema id is 16 hexadecimal digits, not {header.schema_id[:80]!r}"
        )
    if header.count and header.kind is BatchKind.SCHEMA:
        raise WireError(f"batch {header.seq} announces schemas but counts {header.count} rows")
    if header.flags & ~DEFLATED:
        raise WireError(f"batch {header.seq} has unknown flags {header.flags:#x}")
    for channel in header.watermarks:
        _check_channel(channel)
    for step, split in header.positions:
        _check_channel(step)
        if not split:
            raise WireError(f"batch {header.seq}: a split of step {step} has no name")


def _check_envelope(envelope: Envelope) -> None:
    if not envelope.header:
        raise WireError("an envelope has no header")
    if len(envelope.digest) != DIGEST_BYTES:
        raise WireError(f"a digest has {DIGEST_BYTES} bytes, not {len(envelope.digest)}")
    _check_seq(envelope.oldest_seq)


def _check_control(control: Ack | Nack) -> None:
    check_name("flow", control.flow)
    _check_epoch(control.epoch)
    _check_seq(control.seq)
    if not 0 <= control.term <= INT64_MAX:
        raise WireError(f"a term is never negative and fits 64 bits: {control.term}")
    if isinstance(control, Ack) and len(control.digest) != DIGEST_BYTES:
        raise WireError(f"a digest has {DIGEST_BYTES} bytes, not {len(control.digest)}")


def _check_schema(channel: str, schema: Schema, limits: Limits) -> None:
    _check_channel(channel)
    names = [schema.name, *(field.name for field in schema.fields)]
    if len(names) > limits.names_max:
        raise WireError(f"the schema of channel {channel} has more than {limits.names_max} fields")
    if not all(0 < len(name) <= _SCHEMA_NAME_CHARS_MAX and name.isprintable() for name in names):
        raise WireError(
            f"the schema of channel {channel} has a name that is empty, not printable, or longer than "
            f"{_SCHEMA_NAME_CHARS_MAX} characters"
        )


def _check_channel(channel: str) -> None:
    if not _CHANNEL.fullmatch(channel):
        raise WireError(f"{channel[:80]!r} cannot name a channel or a step")


def _check_epoch(epoch: bytes) -> None:
    if len(epoch) != EPOCH_BYTES:
        raise WireError(f"an epoch has {EPOCH_BYTES} bytes, not {len(epoch)}")


def _check_seq(seq: int) -> None:
    if not 1 <= seq <= INT64_MAX:
        raise WireError(f"a seq is at least 1 and fits 64 bits: {seq}")
