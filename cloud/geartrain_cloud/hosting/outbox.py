"""How a host opens the outbox of a flow: what each down channel is, who is known, what time it is.

Between what was prepared of a flow and its outbox, without the flow's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from geartrain.adapters.system import SystemRandomness
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.downlink.writer import NamedChannel, OutboxWriter, unsendable
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.opening import OutgoingSink, SinkPlace
from geartrain_cloud.sinks.store import Rows, Store
from geartrain_cloud.spark.clocks import least_clock
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.flow_log import FlowLog


class SilentOutbox:
    """`Store` for a run of which a former one has sent all: it refuses what that one refused, and sends
    nothing.
    """

    def __init__(self, channels: Mapping[str, NamedChannel]) -> None:
        self._channels = channels

    def check(self, layout: Layout) -> None:
        """It has no options."""

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Nothing is made."""

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Nothing is bound."""

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows that name no device, or cannot be sent."""
        return unsendable(self._channels[sink_id], rows)

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is held."""


def down_places(prepared: Prepared) -> list[SinkPlace]:
    """The streams of a flow that go down to devices, as sinks."""
    return [
        SinkPlace(one.id, OutgoingSink(one.id.lstrip("_")), Schema.from_json(one.schema))
        for one in prepared.down
    ]


def outbox_of(
    log: LogReader, hosted: Hosted, prepared: Prepared, path: Path, busy_s: float, *, sends: bool
) -> Callable[[], Store]:
    """Opens the outbox of a generation at `path`; raises `OutboxError` when called.

    sends: False where a former run has sent all that there is.
    """
    channels = {
        one.id: NamedChannel(Schema.from_json(one.schema), HOSTED, one.is_timed) for one in prepared.down
    }
    if not sends:
        return lambda: SilentOutbox(channels)
    flow_log = FlowLog(log, hosted.flow, hosted.channels)

    def clock(query: str, positions: Mapping[str, int]) -> int:
        clocks = flow_log.clocks({key: positions.get(key, 0) for key in hosted.keys})
        return least_clock(clocks, hosted.sources)

    return lambda: OutboxWriter(
        path, hosted.flow, channels, flow_log.assigned, clock, SystemRandomness(), busy_s=busy_s
    )
