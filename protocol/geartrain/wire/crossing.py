"""The body of a CROSSING as bytes and back: what a device runs from there on, and its channels' schemas.

Between the agent, which writes it in the commit in which it goes over, and ingest, which logs it. Guarantees:
equal data gives equal bytes; decoding arbitrary bytes raises only `WireError`, and what it returns is within
the caps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from geartrain.errors import WireError
from geartrain.schema.fields import Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.checks import check_channel
from geartrain.wire.codec import decode_schemas, encode_schemas
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.parsing import INT64_MAX, check_size, parse

_HASH = re.compile(r"[0-9a-f]{64}|")


class Crossing(msgspec.Struct, frozen=True):
    """What a device runs.

    cut: the steps on the device; base_cut: those of the cut that the flow was submitted with, () where that
    is not said; revision: the hash of what it runs, 64 hexadecimal digits or ""; number: of that revision
    among those of the flow, 0 where that is not said.
    """

    cut: tuple[str, ...] = ()
    base_cut: tuple[str, ...] = ()
    revision: str = ""
    number: int = 0

    def __str__(self) -> str:
        based = f" of base cut {', '.join(self.base_cut)}" if self.base_cut else ""
        number = f"{self.number}, " if self.number else ""
        return f"cut {', '.join(self.cut)}{based}, revision {number}{self.revision[:12] or 'not said'}"


def encode_crossing(crossing: Crossing, schemas: Mapping[str, Schema]) -> bytes:
    """The body of a CROSSING that announces `schemas` by channel; raises `WireError` when it could not be
    decoded.
    """
    _check(crossing, LIMITS)
    encoded: bytes = pb.Crossing(
        cut=",".join(sorted(crossing.cut)),
        base_cut=",".join(sorted(crossing.base_cut)),
        revision=crossing.revision,
        schemas=pb.Schemas.FromString(encode_schemas(schemas)),
        number=crossing.number,
    ).SerializeToString()
    check_size(encoded, "the body of a crossing", LIMITS.sent_body_bytes_max)
    return encoded


def decode_crossing(data: bytes, limits: Limits = LIMITS) -> tuple[Crossing, dict[str, Schema]]:
    """What the body of a CROSSING says; raises `WireError`."""
    raw = parse(pb.Crossing, data, "the body of a crossing", limits.payload_bytes_max)
    crossing = Crossing(_steps(raw.cut), _steps(raw.base_cut), raw.revision, raw.number)
    _check(crossing, limits)
    return crossing, decode_schemas(raw.schemas.SerializeToString(), limits)


def _steps(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _check(crossing: Crossing, limits: Limits) -> None:
    for cut in (crossing.cut, crossing.base_cut):
        if sum(map(len, cut)) > limits.text_bytes_max:
            raise WireError(f"a crossing names {len(cut)} steps, which are too many")
        for step in cut:
            check_channel(step)
    if not 0 <= crossing.number <= INT64_MAX:
        raise WireError(f"a crossing names revision {crossing.number}; they begin with 1")
    if not _HASH.fullmatch(crossing.revision):
        raise WireError(f"a revision's hash has 64 hexadecimal digits: {crossing.revision[:80]!r}")
