"""The watermarks of a device's sources, as a header says them or as they follow from what it says.

Between a header and the clocks. An agent of 0.2.0 says how far its channels are, and nothing of its sources.
Guarantees: what is derived is never beyond the source's own watermark, and the least mark of the sources
above a channel is exactly the channel's. docs/decisions/0017-one-log-clocks-by-source.md argues
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain.wire.envelope import Header


def source_marks(header: Header, channels: Mapping[str, Collection[str]]) -> Mapping[str, int]:
    """By source, microseconds; `channels`: the sources above each channel of the flow."""
    if header.source_watermarks:
        return header.source_watermarks
    marks: dict[str, int] = {}
    for channel, mark in header.watermarks.items():
        # A channel's mark is the least of its sources', so each of them is at least so far.
        for source in channels.get(channel, ()):
            marks[source] = max(marks.get(source, mark), mark)
    return marks
