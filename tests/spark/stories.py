"""Little flows as stories: what goes in, what is done with it, and what must come out, written by hand.

A story is told twice: in this process, as on a device, and on the host, where all stories run side by side as
one flow with everything but the sources in the cloud, in several micro-batches.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain import Flow, Stream, Table
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import make_plan
from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.testing import TestingSource, run_flow
from tests.hosting.hosted_run import HostedRun
from tests.reference.two_tiers import World
from tests.spark.case_log import log_of
from tests.spark.many_flows import prefix_of, side_by_side

Rows = Sequence[tuple[int, Any]]
"""(event time in microseconds, value)."""


@dataclass
class Told:
    """What came out: rows by output, in order of time; (step, reason) of dead letters; (step, JSON) of
    late records."""

    rows: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    dead: list[tuple[str, str]] = field(default_factory=list)
    late: list[tuple[str, str]] = field(default_factory=list)

    def sorted(self) -> Told:
        """In an order that does not depend on how it came."""
        ordered = {name: sorted(rows, key=_by_time) for name, rows in self.rows.items()}
        return Told(ordered, sorted(self.dead), sorted(self.late))


def _by_time(row: tuple[int, Any]) -> tuple[int, str]:
    return row[0], repr(row[1])


@dataclass(frozen=True)
class Story:
    """A flow with its data: the parameters of `build` are its sources, what it returns its outputs."""

    build: Callable[..., Stream[Any] | Mapping[str, Stream[Any]]]
    takes: Mapping[str, Rows]
    gives: Told
    bound_us: int

    @property
    def name(self) -> str:
        return self.build.__name__.strip("_")

    def flow(self) -> Flow:
        flow = Flow(self.name)
        hints = typing.get_type_hints(self.build)
        sources = {}
        for name, items in self.takes.items():
            source = _Items(items=items, name=name, out_of_orderness_us=self.bound_us)
            sources[name] = flow.source(name, source, out=typing.get_args(hints[name])[0])
        made = self.build(**sources)
        for name, stream in ({"out": made} if isinstance(made, Stream) else made).items():
            stream.sink(f"to_{name}", Table(name))
        return flow

    def world(self) -> World:
        device = {name: {name: items} for name, items in self.takes.items()}
        return World({"device": device}, dict.fromkeys(self.takes, self.bound_us))

    def told_here(self) -> Told:
        """Run it in this process."""
        found = run_flow(self.flow(), rows_max=2)
        return Told(
            {name.removeprefix("to_"): rows for name, rows in found.tables.items()},
            [(letter.step, letter.reason) for letter in found.dead_letters],
            [(letter.step, letter.raw.decode()) for letter in found.late],
        )


class _Items(TestingSource[Any]):
    @property
    def keeps_order(self) -> bool:
        return not self.out_of_orderness_us


class Book:
    """Stories that are run together."""

    def __init__(self) -> None:
        self.stories: list[Story] = []

    def story(
        self,
        *,
        gives: Rows | Mapping[str, Rows],
        dead: Sequence[tuple[str, str]] = (),
        late: Sequence[tuple[str, str]] = (),
        bound_us: int = 0,
        **takes: Rows,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Tell one: `takes` are the rows of its sources; bound_us: how far these may be out of order."""

        def add(build: Callable[..., Any]) -> Callable[..., Any]:
            rows = {"out": gives} if not isinstance(gives, Mapping) else gives
            told = Told({name: list(items) for name, items in rows.items()}, list(dead), list(late))
            self.stories.append(Story(build, takes, told, bound_us))
            return build

        return add

    def told_on_spark(self, spark: SparkSession, folder: Path, batches: int) -> dict[str, Told]:
        """Run all of them in one run of about so many micro-batches; what each gave."""
        graph, world = side_by_side((story.flow().graph(), story.world()) for story in self.stories)
        plan = make_plan(graph, "cloud")
        log = list(log_of(plan, world, random.Random(2)))
        rows = sum(len(entry.rows) for entry in log if entry.rows is not None)
        run = HostedRun(spark, folder, graph, rows_max=rows // batches + 1)
        run.append(log)
        run.run()
        run.log.close()
        assert run.micro_batches >= batches
        sinks = run.sinks()
        found = dict(_told(graph, sinks, number) for number in range(len(self.stories)))
        return {story.name: found[number] for number, story in enumerate(self.stories)}


def _told(graph: Graph, sinks: Mapping[str, Sequence[ColumnBatch]], number: int) -> tuple[int, Told]:
    prefix = prefix_of(number)
    told = Told()
    for sink in (step.id for step in graph.sinks()):
        if sink.startswith(prefix):
            kind = graph[graph[sink].inputs[0].step].out
            told.rows[sink.removeprefix(f"{prefix}to_")] = list(_records(sinks.get(sink, []), kind))
    for system, rows in ((DEAD_LETTERS, told.dead), (LATE, told.late)):
        for _, letter in _records(sinks.get(system, []), Letter):
            if letter.step.startswith(prefix):
                step = letter.step.removeprefix(prefix)
                rows.append((step, letter.reason if system == DEAD_LETTERS else letter.raw.decode()))
    return number, told


def _records(batches: Sequence[ColumnBatch], kind: Any) -> Iterator[tuple[int, Any]]:
    codec = RowCodec(kind)
    for batch in batches:
        yield from zip(batch.times, codec.from_columns(batch.fields), strict=True)
