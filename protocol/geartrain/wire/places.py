"""Watermarks and positions as protobuf and back: where a device stands, in headers and welcomes alike.

Guarantees: written in the order of their names, so that equal ones are equal bytes; a name twice is a
`WireError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geartrain.errors import WireError
from geartrain.ports.spool import SplitProgress
from geartrain.wire import geartrain_pb2 as pb


def raw_watermarks(watermarks: Mapping[str, int]) -> list[pb.Watermark]:
    """By channel, microseconds; raises `TypeError` or `ValueError` for what protobuf cannot hold."""
    return [pb.Watermark(channel=channel, time=time) for channel, time in sorted(watermarks.items())]


def raw_source_watermarks(watermarks: Mapping[str, int]) -> list[pb.SourceWatermark]:
    """By source step, microseconds; raises `TypeError` or `ValueError` for what protobuf cannot hold."""
    return [pb.SourceWatermark(source=source, time=time) for source, time in sorted(watermarks.items())]


def raw_positions(positions: Mapping[tuple[str, str], SplitProgress]) -> list[pb.Position]:
    """By (source step, split); raises `TypeError` or `ValueError` for what protobuf cannot hold."""
    return [
        pb.Position(step=step, split=split, position=at.position, max_time=at.max_time, ended=at.ended)
        for (step, split), at in sorted(positions.items())
    ]


def watermarks_of(raw: Sequence[pb.Watermark]) -> dict[str, int]:
    """The watermarks by channel; raises `WireError` for one named twice."""
    watermarks = {one.channel: one.time for one in raw}
    if len(watermarks) != len(raw):
        raise WireError("a header names a channel or a split twice")
    return watermarks


def source_watermarks_of(raw: Sequence[pb.SourceWatermark]) -> dict[str, int]:
    """The watermarks by source step; raises `WireError` for one named twice."""
    watermarks = {one.source: one.time for one in raw}
    if len(watermarks) != len(raw):
        raise WireError("a header names a source twice")
    return watermarks


def positions_of(raw: Sequence[pb.Position]) -> dict[tuple[str, str], SplitProgress]:
    """The positions by (source step, split); raises `WireError` for one named twice."""
    positions = {(p.step, p.split): SplitProgress(p.position, p.max_time, p.ended) for p in raw}
    if len(positions) != len(raw):
        raise WireError("a header names a channel or a split twice")
    return positions
