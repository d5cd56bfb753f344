"""Whether the records that were found make the row again: the cloud's steps over these records alone.

The check of an explanation, by the engine of `gear run`. Guarantees: the steps are fed with these records and
with nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import RowCodec
from geartrain_cloud.explaining.held_row import HeldRow, json_row
from geartrain_cloud.explaining.logged import LoggedFlow, LoggedRows, opened
from geartrain_cloud.explaining.places import place_of


def made_again(logged: LoggedFlow, found: Iterable[LoggedRows], held: HeldRow) -> Mapping[str, Any] | None:
    """The record of the row's place that comes out of these rows of the log alone; None where none does."""
    plan = logged.plan
    steps = logged.above(held.sink)
    stream = plan.graph[held.sink].inputs[0].step
    channels, fragment = logged.read_by(steps), opened(plan, steps)
    for one in found:
        logged.feed(fragment, one)
    sources = {source.id: END_OF_TIME for source in plan.graph.sources()}
    logged.advance(fragment, channels, sources)
    codec = RowCodec(plan.graph[stream].out)
    for batch in fragment.take().batches.get(held.sink, []):
        for row, value in enumerate(batch.values):
            if place_of(batch, row) == held.place:
                columns = codec.to_columns([value])
                return json_row(codec.schema, [column[0] for column in columns])
    return None
