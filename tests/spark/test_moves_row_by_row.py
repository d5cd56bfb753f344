"""A step without state moves while a fast and a slow device feed a join, a record of the log per micro-batch:
nothing is overtaken, and each key's records keep their order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import ClassVar

import pytest

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.graph.graph import DEAD_LETTERS, LATE, OVERTAKEN, Graph
from geartrain.planning import make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.records.event_time import END_OF_TIME, SECOND_US, START_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.stage_run import LogRow, StageRun
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import Device, Sent, World
from tests.spark.case_log import answer_of, columns_of
from tests.spark.stage_run import columns_table

RECORDS = 40
"""Of each split."""
BOUND_US = 2 * SECOND_US
HELD = ("heats", "flows")
"""The steps of the one cut; the other has the step that moves as well."""


class Heat(Record):
    line: str
    value: float


class Met(Record):
    line: str
    heat: float
    flow: float
    number: int = 0


class Count(State):
    number: int = 0


class Numbered(Task[Met, Met]):
    """Says of each record which of its line it is, so that the order shows."""

    state: ClassVar[type] = Count

    def on_next(self, met: Met, ctx: Context[Met, Count]) -> None:
        ctx.state.number += 1
        ctx.emit(Met(met.line, met.heat, met.flow, ctx.state.number))


def doubled(heat: Heat) -> Heat:
    return Heat(heat.line, 2 * heat.value)


def meet(heat: Heat, flow: Heat) -> Met:
    return Met(heat.line, heat.value, flow.value)


def graph_of() -> Graph:
    flow = Flow("lines")
    heats = flow.source("heats", TestingSource[Heat](), out=Heat).map(doubled, name="doubled")
    flows = flow.source("flows", TestingSource[Heat](), out=Heat)
    near = timedelta(seconds=1)
    met = heats.key_by("line").join("meet", flows.key_by("line"), meet, lower=-near, upper=near, out=Met)
    met.key_by("line").process("numbered", Numbered(), out=Met).sink("out", Table("met"))
    return flow.graph()


def world_of(rng: random.Random) -> World:
    """Two devices over the same time, each with a split of either source; records are out of order."""
    devices = {}
    for device in ("fast", "slow"):
        devices[device] = {
            source: {
                device: [
                    (n * SECOND_US - rng.randrange(BOUND_US), Heat(f"l{rng.randrange(3)}", rng.random()))
                    for n in range(3, RECORDS + 3)
                ]
            }
            for source in HELD
        }
    return World(devices, dict.fromkeys(HELD, BOUND_US))


def rows_of(sent: Sequence[Sent]) -> Iterator[Sent]:
    """What a device sends, a record each."""
    for one in sent:
        if one.rows is None:
            yield one
        elif one.channel not in (DEAD_LETTERS, LATE):
            yield from (Sent(one.channel, row) for row in one.rows.slices(1))


@pytest.mark.parametrize("seed", range(6))
def test_a_stateless_step_moves_beside_a_join_of_two_inputs(seed: int) -> None:
    rng, graph = random.Random(seed), graph_of()
    world = world_of(rng)
    cuts = (HELD, (*HELD, "doubled"))
    plans = [make_plan(graph, cut, base=HELD) for cut in cuts]
    mixed = make_mixed_plan(graph, HELD, cuts[1:])
    run, kinds = StageRun(hosted_query(mixed), rng), {one.id: one.kind for one in mixed.channels}
    logs = {
        name: list(
            rows_of(Device(plans[0], splits, world.bounds_us, rng).run([plans[1], plans[0], plans[1]]))
        )
        for name, splits in world.devices.items()
    }
    used = {name: {one.channel for one in log if one.rows is not None} for name, log in logs.items()}
    assert used["fast"] >= {"doubled"} or used["slow"] >= {"doubled"}
    marks = {name: dict.fromkeys(HELD, START_OF_TIME) for name in logs}
    found: dict[str, list[ColumnBatch]] = {}
    overtook, positions = 0, {name: count(1) for name in logs}
    while any(logs.values()):
        fast = bool(logs["fast"]) and (rng.random() < 0.9 or not logs["slow"])
        name = "fast" if fast else "slow"
        sent = logs[name].pop(0)
        row: list[LogRow] = []
        if sent.rows is None:
            marks[name].update(sent.marks)
        else:
            columns = columns_of(RowCodec(kinds[sent.channel]), sent.rows)
            table = columns_table(columns, kinds[sent.channel], device=name)
            row = [(sent.channel, next(positions[name]), table, "01"[name == "slow"])]
        clocks = {source: min(marks[one][source] for one in marks) for source in HELD}
        overtook += any(marks["fast"][s] > clocks[s] + 5 * SECOND_US for s in HELD)
        for sink, several in run.micro_batch(row, clocks).items():
            found.setdefault(sink, []).extend(several)
    for sink, several in run.micro_batch([], dict.fromkeys(HELD, END_OF_TIME)).items():
        found.setdefault(sink, []).extend(several)
    assert OVERTAKEN not in found
    assert overtook > RECORDS  # the one is far ahead of the other for long
    want = interpret(graph, world.inputs(), world.bounds_us)
    want.late.clear()  # they go to the log beside these channels
    assert len(want.sinks["out"]) > RECORDS
    check_equal(answer_of(graph, found), want)
