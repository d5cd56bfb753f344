"""A random case as a log: what its devices send under one cut, interleaved by chance, with the clocks that
follow, and the way back from the rows of sinks to an answer that compares with the reference's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import Plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, RowCodec
from tests.reference.rows import Answer, Row, in_order
from tests.reference.two_tiers import Device, Sent, World


@dataclass(frozen=True)
class Logged:
    """An entry of the log: rows of a channel, or none, and the clocks of the sources after it."""

    channel: str
    rows: ColumnBatch | None
    clocks: Mapping[str, int]
    device: str = "device-1"


def log_of(
    plan: Plan,
    world: World,
    rng: random.Random,
    own: Sequence[Sequence[Plan]] | None = None,
    seen: Counter[str] | None = None,
) -> Iterator[Logged]:
    """The entries of the log of one run, devices interleaved at random; own: where they differ from the
    cloud's, the plan of each device, and those to which it goes over; seen: gets the cells that left devices.
    """
    codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
    plans = [[plan]] * len(world.devices) if own is None else own
    devices: list[list[Sent]] = []
    for (first, *later), splits in zip(plans, world.devices.values(), strict=True):
        sender = Device(first, splits, world.bounds_us, rng)
        devices.append(sender.run(later, amid=seen is not None))
        if seen is not None:
            seen["cells"] += sender.cells
    sources = [step.id for step in plan.graph.sources()]
    marks = {source: [START_OF_TIME] * len(devices) for source in sources}
    clocks = dict.fromkeys(sources, START_OF_TIME)
    live = [(number, iter(sent)) for number, sent in enumerate(devices)]
    while live:
        pick = rng.choice(live)
        device, sent = pick[0], next(pick[1], None)
        if sent is None:
            live.remove(pick)
            continue
        if sent.rows is not None:
            yield Logged(sent.channel, columns_of(codecs[sent.channel], sent.rows), dict(clocks))
            continue
        for source, mark in sent.marks.items():
            marks[source][device] = max(mark, marks[source][device])
        moved = {source: min(of_devices) for source, of_devices in marks.items()}
        if moved != clocks:
            clocks = moved
            yield Logged("", None, dict(clocks))


def columns_of(codec: RowCodec, batch: Batch) -> ColumnBatch:
    """A batch as columns."""
    columns = codec.to_columns(batch.values)
    return ColumnBatch(columns, batch.times, batch.names, batch.numbers, batch.paths)


def answer_of(graph: Graph, sinks: Mapping[str, Sequence[ColumnBatch]]) -> Answer:
    """What reached the sinks, in the form in which the reference gives its own."""
    answer = Answer({step.id: [] for step in graph.sinks()}, Counter(), Counter())
    for sink, batches in sinks.items():
        letters = {DEAD_LETTERS: answer.dead, LATE: answer.late}.get(sink)
        codec = RowCodec(Letter if letters is not None else graph[graph[sink].inputs[0].step].out)
        rows = [row for batch in batches for row in _rows(codec, batch)]
        if letters is None:
            answer.sinks[sink] = in_order(rows)
        else:
            letters.update((row.value.step, *row.order) for row in rows)
    return answer


def _rows(codec: RowCodec, batch: ColumnBatch) -> Iterator[Row]:
    paths = [b""] * len(batch) if batch.paths is None else batch.paths
    values = codec.from_columns(batch.fields)
    for place in zip(batch.times, batch.names, batch.numbers, paths, values, strict=True):
        yield Row(*place)
