"""State of a former revision that lies elsewhere than in its step as an app goes over: aside for a device
that has claimed it, in pieces on its way from one, or kept before anybody noted its type.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace
from pyspark.sql import Row

from geartrain import Context, Flow, Record, State, Task
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, GIVEN, STATE
from geartrain.planning.mixed import make_mixed_plan
from geartrain.records.event_time import SECOND_US
from geartrain.records.keys import encode_key
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.claims import ASKS, BACK, HAS, Claim, GivenCell, Taking
from geartrain.state.keyed import NEVER, saved_cell
from geartrain.state.moving import StateCell, records
from geartrain.tasks.migration import form_of
from geartrain.testing import TestingSink, TestingSource
from geartrain_cloud.hosting.crossing import dropped_state
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.spark.buckets import BucketState, forget_steps
from geartrain_cloud.spark.clocks import encode_clocks
from geartrain_cloud.spark.compile import hosted_query
from geartrain_cloud.spark.embedded import EmbeddedFragment
from geartrain_cloud.spark.rows import CLOCKS
from geartrain_simulation.fleet.stage_run import LogRow, StageRun, StateMap
from tests.spark.stage_run import log_table, records_of


class Level(Record):
    sensor: str
    value: int


class Held(State):
    total: int = 0
    low: int = 1_000


class Adding(Task[Level, Level]):
    """By former code: the sum alone."""

    state: ClassVar[type] = int

    def on_next(self, value: Level, ctx: Context[Level, Any]) -> None:
        ctx.state += value.value
        ctx.emit(Level(value.sensor, ctx.state))


class Holding(Task[Level, Level]):
    """The least value as well; and ten for each sum that was there before."""

    state: ClassVar[type] = Held
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {int: lambda total: Held(total + 10)}

    def on_next(self, value: Level, ctx: Context[Level, Any]) -> None:
        ctx.state.total += value.value
        ctx.emit(Level(value.sensor, ctx.state.total))


class Ringing(Holding):
    """And a timer."""

    def on_notify(self, time: int, ctx: Context[Level, Any]) -> None:
        ctx.emit(Level(ctx.key, -ctx.state.total))


class Setting(Ringing):
    """That is set by each record."""

    def on_next(self, value: Level, ctx: Context[Level, Any]) -> None:
        super().on_next(value, ctx)
        ctx.notify_at(50 * SECOND_US)


def query_of(task: Task[Level, Level], ttl: timedelta | None = None) -> Any:
    flow = Flow("levels")
    levels = flow.source("levels", TestingSource(items=[]), out=Level, partitioned_by="sensor")
    levels.key_by("sensor").process("sums", task, out=Level, ttl=ttl).sink("out", TestingSink("out"))
    return hosted_query(make_mixed_plan(flow.graph(), "cloud", ["edge"]))


class Revised(StageRun):
    """The stages of a flow that goes over to other code."""

    def __init__(self, task: Task[Level, Level], ttl: timedelta | None = None) -> None:
        super().__init__(query_of(task, ttl), random.Random(4))
        self._position, self.found = 0, dict[str, list[ColumnBatch]]()

    def goes_over(self, task: Task[Level, Level], ttl: timedelta | None = None) -> None:
        self.query = query_of(task, ttl)

    def reads(self, *rows: Callable[[int], LogRow], clock: int = SECOND_US) -> list[tuple[Any, ...]]:
        """What comes to the sink of some rows."""
        made = []
        for row in rows:
            self._position += 1
            made.append(row(self._position))
        self.found = self.micro_batch(made, clock)
        return sorted(records_of(self.found["out"])) if "out" in self.found else []


def level(sensor: str, value: int) -> Callable[[int], LogRow]:
    rows = (Level(sensor, value), 20 * SECOND_US, "d1/levels")
    channel = next(c for c in query_of(Adding()).channels if c.startswith("levels"))
    return lambda at: (channel, at, log_table([(*rows, at)], Level, device="d1"))


def claims(number: int, says: str) -> Callable[[int], LogRow]:
    claim = Claim(number, "sums", says, 10 * SECOND_US)
    return lambda at: (CLAIMS, at, log_table([(claim, 0, "_claims", at)], Claim, device="d1"))


def saved(state: Any) -> bytes:
    return saved_cell(NEVER, msgspec.msgpack.encode(state))


def leaves(cell: StateCell) -> Callable[[int], LogRow]:
    return lambda at: (STATE, at, log_table([(cell, 0, "d1/_state", at)], StateCell, device="d1"))


def given(found: Mapping[str, Sequence[ColumnBatch]], number: int) -> Taking:
    taking = Taking(number, ["sums"])
    for batch in found[GIVEN]:
        for one in RowCodec(GivenCell).from_columns(batch.fields[:-1]):
            taking.take(one)
    return taking


def test_cells_that_are_aside_for_a_device_become_others_too() -> None:
    run = Revised(Adding())
    assert run.reads(level("a", 1), level("b", 2), claims(1, ASKS)) == [("a", 1), ("b", 2)]
    assert given(run.found, 1).forms == {"sums": form_of(int)}
    run.goes_over(Holding())
    assert run.reads(claims(1, BACK)) == []
    assert run.reads(level("a", 4), level("c", 4)) == [("a", 15), ("c", 4)]
    run.reads(claims(2, ASKS))
    assert given(run.found, 2).forms == {"sums": form_of(Held)}
    run.reads(claims(2, HAS))
    assert run.reads(level("b", 1)) == [("b", 1)]  # the device has what was there


def test_cells_that_a_device_left_by_former_code_are_made_anew() -> None:
    run = Revised(Holding())
    cells = {
        ("sums", encode_key(s)): saved_cell(NEVER, msgspec.msgpack.encode(n)) for s, n in (("a", 7), ("b", 8))
    }
    for said in records(cells, piece_bytes=5, forms={"sums": form_of(int)}):
        run.reads(leaves(said))
    now = {("sums", encode_key("c")): saved(Held(5, 3))}
    run.reads(*map(leaves, records(now, forms={"sums": form_of(Held)})))
    assert run.reads(level("a", 1), level("b", 1), level("c", 1)) == [("a", 18), ("b", 19), ("c", 6)]
    strange = {("sums", encode_key("d")): saved(1.5)}
    run.reads(*map(leaves, records(strange, forms={"sums": form_of(float)})))
    letters = str([batch.fields for batch in run.found[DEAD_LETTERS]])
    assert "its migrate does not name the type of the saved state" in letters


@pytest.mark.parametrize(("first", "then"), [(Holding, Ringing), (Ringing, Holding), (Setting, Holding)])
def test_a_task_may_get_timers_and_lose_them(first: type[Holding], then: type[Holding]) -> None:
    run = Revised(first())
    run.reads(level("a", 1), level("b", 2))
    run.goes_over(then())
    assert run.reads(level("a", 1), clock=30 * SECOND_US) == [("a", 2)]
    assert run.reads(clock=90 * SECOND_US) == []
    run.goes_over(Setting())
    assert run.reads(level("b", 1), clock=90 * SECOND_US) == [("b", -3), ("b", 3)]


def test_what_a_shard_has_kept_without_its_type_is_known_by_what_ran() -> None:
    known = Prepared("p", {}, 1, (), (), (), states={"sums": 1}, forms={"sums": form_of(int)})
    now = replace(known, forms={"sums": form_of(Held)}, migrates=("sums",))
    assert dropped_state("levels.1", known, now, ()) == {}
    assert dropped_state("levels.1", known, now, ("sums",)) == {1: ("sums",)}
    state, clocks = StateMap(), encode_clocks({"levels": SECOND_US})
    for task, forms in ((Adding(), {}), (Holding(), known.forms)):
        fragment = EmbeddedFragment(query_of(task), 1, (7,), forms=forms)
        tick = Row(shard=7, stage=1, stream=CLOCKS, sender="", position=0, sequence=0, packed=clocks)
        found = list(fragment.run(state, iter([tick])))
        assert not found
        cells = BucketState(state, 1)
        if not forms:
            cells.save({("sums", encode_key("a")): saved(3)})
            raw = msgspec.msgpack.decode(state.values[-1])
            state.values[-1] = msgspec.msgpack.encode([*raw[:4], {}])  # which names no type
    assert BucketState(state, 1).load("sums", encode_key("a")) == saved(Held(13))


def test_state_that_is_dropped_goes_wherever_it_lies() -> None:
    run = Revised(Adding())
    run.reads(level("a", 1), level("b", 2), claims(1, ASKS), level("c", 3))
    piece = StateCell(f"sums@{form_of(int)}", encode_key("d"), 0, 12, b"12345678")
    run.reads(leaves(piece))
    lost = sum(forget_steps(state, ("sums",), 2)["sums"] for state in run.states.values())
    assert lost == 4
    assert run.reads(claims(1, BACK)) == []
    assert run.reads(level("a", 1)) == [("a", 1)]


@pytest.mark.parametrize("other_s", [10, 7_200])
def test_a_time_to_live_holds_at_once_for_a_key_that_is_not_called_again(other_s: int) -> None:
    run = Revised(Setting(), timedelta(hours=1))
    assert run.reads(level("a", 3)) == [("a", 3)]
    run.goes_over(Setting(), timedelta(seconds=other_s))
    assert run.reads(clock=40 * SECOND_US) == []
    run.goes_over(Setting(), timedelta(hours=1))
    fired = run.reads(clock=60 * SECOND_US)
    assert fired == ([("a", -3)] if other_s == 7_200 else []), "its timer goes with the key"
