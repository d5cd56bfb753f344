"""Whether the records that were found make the row again: the cloud's steps over these records alone.

The check of an explanation, by the engine of `gear run`. Guarantees: the steps are fed with these records and
with nothing else, but for the state that devices have left to them. A record may also have been in windows
that had no part in the row. They lack their other records here, so what they put out goes nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from geartrain.graph.graph import Step
from geartrain.graph.operator import Transform
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain_cloud.explaining.held_row import HeldRow, json_row
from geartrain_cloud.explaining.logged import LoggedFlow
from geartrain_cloud.explaining.places import Place, place_of
from geartrain_cloud.explaining.tracing import Trace


class _ChosenFragment(Fragment):
    """A fragment of some of whose steps only chosen results go on."""

    def __init__(self, places: Mapping[str, Collection[Place]], *args: Any, **options: Any) -> None:
        """places: by step, those results; other steps put out all of theirs."""
        self._places = places
        super().__init__(*args, **options)

    def _open(self, step: Step) -> None:
        super()._open(step)
        if step.id in self._places:
            self._feeds[step.id] = [self._choosing(step.id, feed) for feed in self._feeds[step.id]]

    def _choosing(self, step: str, feed: Transform) -> Transform:
        return lambda batch: self._choose(step, feed(batch))

    def _choose(self, step: str, batch: Batch) -> Batch:
        places = self._places[step]
        return batch.take([row for row in range(len(batch)) if place_of(batch, row) in places])

    def _deliver(self, step: Step, batch: Batch) -> None:
        super()._deliver(step, self._choose(step.id, batch) if step.id in self._places else batch)


def made_again(logged: LoggedFlow, trace: Trace, held: HeldRow) -> Mapping[str, Any] | None:
    """The record of the row's place that comes out of what was found alone; None where none does."""
    plan = logged.plan
    steps = logged.above(held.sink)
    stream = plan.graph[held.sink].inputs[0].step
    followed = logged.opened(steps, partial(_ChosenFragment, trace.places))
    moved = [one for chunk in logged.chunks(logged.moving) for one in chunk.rows] if logged.moving else []
    for one in sorted([*trace.found, *moved], key=lambda one: (one.entry.partition, one.entry.number)):
        logged.feed(followed, one)
    followed.advance(logged.read_by(steps), {source.id: END_OF_TIME for source in plan.graph.sources()})
    codec = RowCodec(plan.graph[stream].out)
    for batch in followed.take().batches.get(held.sink, []):
        for row, value in enumerate(batch.values):
            if place_of(batch, row) == held.place:
                columns = codec.to_columns([value])
                return json_row(codec.schema, [column[0] for column in columns])
    return None
