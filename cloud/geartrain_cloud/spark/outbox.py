"""How a driver opens the outbox of its flow: what each down channel is, who is known, what time it is.

It stands between the compiled queries and the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from geartrain.adapters.system import SystemRandomness
from geartrain.operators.deal import Deal
from geartrain.planning import Plan
from geartrain.planning.dealt import waits_for_time
from geartrain.schema import RowCodec
from geartrain_cloud.downlink.writer import DownChannel, OutboxWriter
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.status import query_clock


def outbox_of(plan: Plan, queries: Sequence[Query], log: LogReader, path: Path) -> Callable[[], OutboxWriter]:
    """Opens the outbox at `path`; raises `OutboxError` when called."""
    flow, by_name = plan.graph.name, {query.name: query for query in queries}

    def devices() -> list[str]:
        return log.assigned(flow)

    def clock(query: str, positions: Mapping[str, int]) -> int:
        return query_clock(log, by_name[query], dict(positions))

    def channels() -> dict[str, DownChannel]:
        found = {}
        for channel in plan.down:
            deal = plan.graph[channel.id].operator
            query = next(q.name for q in queries if channel.id in q.sinks)
            if isinstance(deal, Deal):
                timed = waits_for_time(plan.graph, channel.id)
                found[channel.id] = DownChannel(deal, RowCodec(channel.kind), query, timed)
        return found

    return lambda: OutboxWriter(path, flow, channels(), devices, clock, SystemRandomness())
