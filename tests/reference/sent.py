"""What a cut sends, counted in a run of that very cut: the reference for what is measured once for all cuts.

A device runs the steps of the edge and nothing else; each channel is encoded in batches of 256 rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import geartrain_examples
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.planning import Cut, make_plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.source import Batch as Read
from geartrain.wire.body import encode_rows
from geartrain_examples.stocks.data import write_sample

BATCH_ROWS = 256
TRAFFIC = Path(geartrain_examples.__file__).parent / "traffic" / "data"
TRAFFIC_FILES = (("passes", ".gz"), ("loops", ".gz"), ("checkpoints", ""))
EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "stocks": {},
    "wordcount": {"lines": {"records": 2_000}},
    "complexdag": {},
    "sol": {"light": {"records": 3_000}},
    "sensors": {},
    "traffic": {step: {"path": str(TRAFFIC / f"{step}.csv{gz}")} for step, gz in TRAFFIC_FILES},
}


def example(name: str, folder: Path) -> Graph:
    """An example on its own data, small enough to be run many times."""
    options = EXAMPLES[name]
    if name == "stocks":
        write_sample(folder / "prices.csv")
        options = {"quotes": {"path": str(folder / "prices.csv")}}
    return load_flow(f"geartrain_examples.{name}.flow:flow").graph().with_options(options)


class Reads:
    """What the sources of a flow give on one device, read once for a run of each of its cuts: what a read
    gives depends on its position alone.
    """

    def __init__(self, graph: Graph) -> None:
        self._splits = [
            (step.id, split)
            for step in graph.sources()
            if isinstance(step.operator, SourceOperator)
            for split in step.operator.source.open("local", step.id, step.out)
        ]
        self._polls: dict[tuple[int, int], Read] = {}

    def trackers(self) -> list[SplitTracker]:
        """One for each split, at its beginning."""
        return [
            SplitTracker(step, split.name, split.out_of_orderness_us, None) for step, split in self._splits
        ]

    async def read(self, number: int, position: int) -> Read:
        """What the split of this number gives at a position."""
        poll = self._polls.get((number, position))
        if poll is None:
            poll = await self._splits[number][1].read(position, BATCH_ROWS)
            self._polls[number, position] = poll
        return poll


def sent_over(graph: Graph, cut: Cut, reads: Reads | None = None) -> dict[str, int]:
    """By channel, the bytes that a device sends which runs the edge's steps of `cut` and nothing else."""
    plan = make_plan(graph, sorted(cut.edge))
    rows = rows_over(graph, cut, reads)
    return {c.id: encoded(c.kind, rows[c.id]) for c in plan.channels}


def rows_over(graph: Graph, cut: Cut, reads: Reads | None = None) -> dict[str, list[Batch]]:
    """By channel, what leaves that device."""
    plan = make_plan(graph, sorted(cut.edge))
    assert plan.cut == cut
    found = asyncio.run(_edge(plan.graph, plan.edge, reads or Reads(plan.graph)))
    return {channel.id: found.get(channel.id, []) for channel in plan.channels}


async def _edge(graph: Graph, steps: tuple[str, ...], reads: Reads) -> Mapping[str, list[Batch]]:
    fragment = Fragment(graph, steps)
    trackers = reads.trackers()
    found: dict[str, list[Batch]] = {}
    while any(not tracker.progress.ended for tracker in trackers):
        for number, tracker in enumerate(trackers):
            if tracker.progress.ended:
                continue
            batch, late, rejected = tracker.observe(await reads.read(number, tracker.progress.position))
            for letter in rejected:
                fragment.reject(letter)
            for letter in late:
                fragment.divert_late(letter)
            fragment.feed(tracker.step, batch)
            for step in graph.sources():
                marks = [t.watermark for t in trackers if t.step == step.id]
                fragment.advance(step.id, min(marks, default=END_OF_TIME))
            for channel, batches in fragment.take().batches.items():
                found.setdefault(channel, []).extend(batches)
    return found


def encoded(kind: Any, batches: list[Batch]) -> int:
    """Bytes of the rows, in order, in batches of 256."""
    codec, size = RowCodec(kind), 0
    rows = [
        (batch.values[i], batch.times[i], (o := batch.origin(i)).name, o.number, o.path)
        for batch in batches
        for i in range(len(batch))
    ]
    for start in range(0, len(rows), BATCH_ROWS):
        values, times, names, numbers, paths = map(list, zip(*rows[start : start + BATCH_ROWS], strict=True))
        columns = ColumnBatch(codec.to_columns(values), times, names, numbers, paths)
        size += len(encode_rows(codec.schema, columns).body)
    return size
