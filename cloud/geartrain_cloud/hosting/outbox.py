"""How a host opens the outbox of a flow: what each down channel is, who is known, what time it is.

Between what was prepared of a flow and its outbox, without the flow's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from geartrain.adapters.system import SystemRandomness
from geartrain.schema import Schema
from geartrain_cloud.downlink.writer import NamedChannel, OutboxWriter
from geartrain_cloud.hosting.flow_log import FlowLog
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import OutgoingSink, SinkPlace
from geartrain_cloud.spark.clocks import least_clock
from geartrain_cloud.spark.compile import HOSTED


def down_places(prepared: Prepared) -> list[SinkPlace]:
    """The streams of a flow that go down to devices, as sinks."""
    return [SinkPlace(one.id, OutgoingSink(one.id), Schema.from_json(one.schema)) for one in prepared.down]


def outbox_of(
    log: LogReader, hosted: Hosted, prepared: Prepared, path: Path, busy_s: float
) -> Callable[[], OutboxWriter]:
    """Opens the outbox of a generation at `path`; raises `OutboxError` when called."""
    channels = {
        one.id: NamedChannel(Schema.from_json(one.schema), HOSTED, one.is_timed) for one in prepared.down
    }
    flow_log = FlowLog(log, hosted.flow, hosted.channels)

    def clock(query: str, positions: Mapping[str, int]) -> int:
        clocks = flow_log.clocks({key: positions.get(key, 0) for key in hosted.keys})
        return least_clock(clocks, hosted.sources)

    return lambda: OutboxWriter(
        path, hosted.flow, channels, flow_log.assigned, clock, SystemRandomness(), busy_s=busy_s
    )
