"""Acks, NACKs and welcomes as bytes and back: what ingest says to a device.

Stands between ingest and the agent's uplink, on both ends. Guarantees: equal data gives equal bytes; decoding
arbitrary bytes raises only `WireError`, and what it returns is within the caps.
"""

from __future__ import annotations

from geartrain.errors import WireError
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.checks import check_control, check_names
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Welcome
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.parsing import check_size, parse
from geartrain.wire.places import positions_of, raw_positions, raw_watermarks, watermarks_of

_REASONS = frozenset(reason.value for reason in NackReason)


def encode_control(control: Control) -> bytes:
    """The payload of an `ack` topic; raises `WireError` when it could not be decoded."""
    check_control(control)
    try:
        encoded: bytes = _raw(control).SerializeToString()
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
    check_names(LIMITS, control.watermarks, control.positions)
    return pb.Control(
        welcome=pb.Welcome(
            flow=flow,
            epoch=epoch,
            watermarks=raw_watermarks(control.watermarks),
            positions=raw_positions(control.positions),
            term=term,
        )
    )


def decode_control(data: bytes, limits: Limits = LIMITS) -> Control:
    """The ack, NACK or welcome in the payload of an `ack` topic; raises `WireError`."""
    raw = parse(pb.Control, data, "an ack", limits.payload_bytes_max)
    kind = raw.WhichOneof("control")
    control: Control
    if kind == "ack":
        control = Ack(raw.ack.flow, raw.ack.epoch, raw.ack.seq, raw.ack.digest, raw.ack.term)
    elif kind == "nack":
        if raw.nack.reason not in _REASONS:
            raise WireError(f"a NACK has the unknown reason {raw.nack.reason}")
        reason = NackReason(raw.nack.reason)
        control = Nack(raw.nack.flow, raw.nack.epoch, raw.nack.seq, reason, raw.nack.term)
    elif kind == "welcome":
        said = raw.welcome
        check_names(limits, said.watermarks, said.positions)
        control = Welcome(
            said.flow, said.epoch, positions_of(said.positions), watermarks_of(said.watermarks), said.term
        )
    else:
        raise WireError("a payload on an ack topic is neither an ack nor a NACK")
    check_control(control)
    return control
