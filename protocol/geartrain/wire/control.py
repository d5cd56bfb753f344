"""Acks, NACKs, welcomes and offers as bytes and back: what ingest says to a device.

Stands between ingest and the agent's uplink, on both ends. Guarantees: equal data gives equal bytes; decoding
arbitrary bytes raises only `WireError`, and what it returns is within the caps. What was damaged on its way
is refused by its checksum: an answer can make a device begin a new epoch, or stop.
"""

from __future__ import annotations

import zlib

from geartrain.errors import WireError
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.checks import check_control, check_names
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Offer, Welcome
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

_REASONS = frozenset(reason.value for reason in NackReason)
_CHECKSUM_BYTES = 5
"""The field as it is written: its tag, and 4 bytes."""


def encode_control(control: Control) -> bytes:
    """The payload of an `ack` topic; raises `WireError` when it could not be decoded."""
    check_control(control)
    try:
        raw = _raw(control)
        raw.checksum = zlib.crc32(raw.SerializeToString())
        # The field with the highest number is written last, so what was summed up stands before it.
        encoded: bytes = raw.SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"what answers flow {control.flow} cannot be encoded: {error}") from None
    check_size(encoded, "an ack", LIMITS.payload_bytes_max)
    return encoded


def _raw(control: Control) -> pb.Control:
    flow, epoch, term = control.flow, control.epoch, control.term
    if isinstance(control, Ack):
        return pb.Control(
            ack=pb.Ack(flow=flow, epoch=epoch, seq=control.seq, digest=control.digest, term=term)
        )
    if isinstance(control, Nack):
        reason = pb.Nack.Reason.ValueType(control.reason.value)
        return pb.Control(nack=pb.Nack(flow=flow, epoch=epoch, seq=control.seq, reason=reason, term=term))
    if isinstance(control, Offer):
        return pb.Control(offer=pb.Offer(flow=flow, epoch=epoch, ordinal=control.ordinal, term=term))
    check_names(LIMITS, control.watermarks, control.positions, control.source_watermarks)
    return pb.Control(
        welcome=pb.Welcome(
            flow=flow,
            epoch=epoch,
            watermarks=raw_watermarks(control.watermarks),
            positions=raw_positions(control.positions),
            term=term,
            source_watermarks=raw_source_watermarks(control.source_watermarks),
            crossing=control.crossing,
        )
    )


def decode_control(data: bytes, limits: Limits = LIMITS) -> Control:
    """The answer in the payload of an `ack` topic; raises `WireError`, also for what came damaged."""
    raw = parse(pb.Control, data, "an ack", limits.payload_bytes_max)
    if not raw.HasField("checksum") or zlib.crc32(data[:-_CHECKSUM_BYTES]) != raw.checksum:
        raise WireError("an ack does not fit its checksum: it was damaged on its way")
    control = _control(raw, limits)
    check_control(control)
    return control


def _control(raw: pb.Control, limits: Limits) -> Control:
    kind = raw.WhichOneof("control")
    if kind == "ack":
        return Ack(raw.ack.flow, raw.ack.epoch, raw.ack.seq, raw.ack.digest, raw.ack.term)
    if kind == "nack":
        if raw.nack.reason not in _REASONS:
            raise WireError(f"a NACK has the unknown reason {raw.nack.reason}")
        reason = NackReason(raw.nack.reason)
        return Nack(raw.nack.flow, raw.nack.epoch, raw.nack.seq, reason, raw.nack.term)
    if kind == "welcome":
        said = raw.welcome
        check_names(limits, said.watermarks, said.positions, said.source_watermarks)
        return Welcome(
            said.flow,
            said.epoch,
            positions_of(said.positions),
            watermarks_of(said.watermarks),
            said.term,
            source_watermarks_of(said.source_watermarks),
            said.crossing,
        )
    if kind == "offer":
        return Offer(raw.offer.flow, raw.offer.epoch, raw.offer.ordinal, raw.offer.term)
    raise WireError("a payload on an ack topic is neither an ack nor a NACK")
