"""Whether the records that were found make the row again: the cloud's steps over these records alone.

The check of an explanation, by the engine of `gear run`. Guarantees: the steps are fed with these records and
with nothing else, but for the state that devices have left to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import RowCodec
from geartrain_cloud.explaining.held_row import HeldRow, json_row
from geartrain_cloud.explaining.logged import LoggedFlow, LoggedRows
from geartrain_cloud.explaining.places import place_of


def made_again(logged: LoggedFlow, found: Iterable[LoggedRows], held: HeldRow) -> Mapping[str, Any] | None:
    """The record of the row's place that comes out of these rows of the log alone; None where none does."""
    plan = logged.plan
    steps = logged.above(held.sink)
    stream = plan.graph[held.sink].inputs[0].step
    followed = logged.opened(steps)
    moved = [one for chunk in logged.chunks(logged.moving) for one in chunk.rows] if logged.moving else []
    for one in sorted([*found, *moved], key=lambda one: (one.entry.partition, one.entry.number)):
        logged.feed(followed, one)
    followed.advance(logged.read_by(steps), {source.id: END_OF_TIME for source in plan.graph.sources()})
    codec = RowCodec(plan.graph[stream].out)
    for batch in followed.take().batches.get(held.sink, []):
        for row, value in enumerate(batch.values):
            if place_of(batch, row) == held.place:
                columns = codec.to_columns([value])
                return json_row(codec.schema, [column[0] for column in columns])
    return None
