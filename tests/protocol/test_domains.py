"""Partition domains: which steps keep the promise that a key lives on one device, and which lose it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from geartrain import Context, Flow, Record, Table, Task, agg, by_key, global_window, tumbling
from geartrain.errors import PlacementError
from geartrain.planning import choose_cut, make_plan
from geartrain.planning.cuts import Rule
from geartrain.planning.properties import derive_properties
from geartrain.sinks import JsonLinesFile
from geartrain.testing import TestingSource


class Pass(Record):
    street: str
    lane: int
    speed: float


class Loop(Record):
    street: str
    lane: int
    occupancy: float


class Counted(Record):
    street: str
    n: int


class Every(Task[Pass, Pass]):
    def on_next(self, value: Pass, ctx: Context[Pass, None]) -> None:
        ctx.emit(faster(value))


class Number(Record):
    n: int


def faster(value: Pass) -> Pass:
    return Pass(value.street, value.lane, value.speed + 1.0)


def twice(value: Pass) -> list[Pass]:
    return [value, value]


def both(left: Any, right: Any) -> Pass:
    return Pass(left.street, left.lane, left.speed)


def hour() -> Any:
    return tumbling(timedelta(hours=1))


KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "a source": lambda passes, other: passes,
    "filter": lambda passes, other: passes.filter(lambda p: p.lane > 0, name="some"),
    "split": lambda passes, other: passes.split("side", lambda p: "left", ("left", "right"))["left"],
    "log": lambda passes, other: passes.log("seen"),
    "key_by on the field": lambda passes, other: passes.key_by("street", name="once"),
    "key_by on another field": lambda passes, other: passes.key_by("lane", name="once"),
    "map that keeps the field": lambda passes, other: passes.map(faster, keeps=["street"]),
    "flat_map that keeps the field": lambda passes, other: passes.flat_map(twice, keeps=["street"]),
    "merge with a source of the same domain": lambda passes, other: passes.merge("all", other("street")),
    "merge with itself, filtered": lambda passes, other: passes.merge(
        "all", passes.filter(lambda p: p.lane > 0, name="some")
    ),
    "join that keeps the field": lambda passes, other: passes.key_by("street", name="l").join(
        "joined", other("street").key_by("street", name="r"), both, within=hour(), keeps=["street"]
    ),
    "process that keeps the field": lambda passes, other: passes.key_by("street", name="k").process(
        "p", Every(), keeps=["street"]
    ),
    "distinct": lambda passes, other: passes.key_by("street", name="k").distinct(
        "d", ttl=timedelta(hours=1), fields=["lane"]
    ),
    "an aggregate that gives its key on": lambda passes, other: (
        passes.key_by("street", name="k").window(hour()).aggregate("n", out=Counted, n=agg.count())
    ),
    "a running aggregate that gives its key on": lambda passes, other: passes.key_by(
        "street", name="k"
    ).aggregate("n", out=Counted, n=agg.count()),
}
LOST: dict[str, Callable[[Any, Any], Any]] = {
    "a source without": lambda passes, other: other(None),
    "map": lambda passes, other: passes.map(faster),
    "map that keeps another field": lambda passes, other: passes.map(faster, keeps=["lane"]),
    "flat_map": lambda passes, other: passes.flat_map(twice),
    "iterate": lambda passes, other: passes.iterate("again", faster, rounds_max=2),
    "merge with a source of another domain": lambda passes, other: passes.merge("all", other("lane")),
    "merge with a source without": lambda passes, other: passes.merge("all", other(None)),
    "merge with what has lost it": lambda passes, other: passes.merge("all", passes.map(faster)),
    "join": lambda passes, other: passes.key_by("street", name="l").join(
        "joined", other("street").key_by("street", name="r"), both, within=hour()
    ),
    "join with a source of another domain": lambda passes, other: passes.key_by("street", name="l").join(
        "joined", other("lane").key_by("street", name="r"), both, within=hour(), keeps=["street"]
    ),
    "process": lambda passes, other: passes.key_by("street", name="k").process("p", Every()),
    "process that keeps another field": lambda passes, other: passes.key_by("street", name="k").process(
        "p", Every(), keeps=["lane"]
    ),
    "reduce": lambda passes, other: passes.key_by("street", name="k").reduce("r", lambda a, b: b),
}


def made(build: Callable[[Any, Any], Any]) -> tuple[Flow, Any]:
    flow = Flow("roads")
    passes = flow.source("passes", TestingSource[Pass](), out=Pass, partitioned_by="street")

    def other(domain: str | None) -> Any:
        return flow.source("other", TestingSource[Pass](), out=Pass, partitioned_by=domain)

    stream = build(passes, other)
    stream.key_by("street", name="last").window(hour()).aggregate("last_n", out=Counted, n=agg.count()).sink(
        "out", Table("out")
    )
    return flow, stream


@pytest.mark.parametrize("name", KEPT)
def test_a_domain_is_kept_and_the_keyed_step_below_stands_on_the_device_whole(name: str) -> None:
    flow, stream = made(KEPT[name])
    assert derive_properties(flow.graph())[stream.step].domain == "street"
    plan = make_plan(flow.graph(), "edge")
    assert "last_n" in plan.edge
    assert plan.reason(plan.graph["last_n"]).rule is Rule.LEGAL


@pytest.mark.parametrize("name", LOST)
def test_a_domain_is_lost_and_the_keyed_step_below_is_split_or_in_the_cloud(name: str) -> None:
    flow, stream = made(LOST[name])
    assert derive_properties(flow.graph())[stream.step].domain != "street"
    plan = make_plan(flow.graph(), "edge")
    assert "last_n" in plan.cloud
    assert ("last_n_partial" in plan.edge) is (stream.step in plan.edge)


def joined(right_domain: str | None, *, key: str = "street") -> Flow:
    flow = Flow("roads")
    passes = flow.source("passes", TestingSource[Pass](), out=Pass, partitioned_by="street")
    loops = flow.source("loops", TestingSource[Loop](), out=Loop, partitioned_by=right_domain)
    right = loops.key_by(key, name="loops_by")
    passes.key_by("street", name="by").join("jam", right, both, within=hour(), out=Pass).sink("o", Table("o"))
    return flow


def test_a_join_stands_on_the_device_where_both_its_sources_share_one_domain() -> None:
    assert "jam" in choose_cut(joined("street").graph(), "edge").edge
    assert "jam" not in choose_cut(joined(None).graph(), "edge").edge
    with pytest.raises(PlacementError, match="the keys of 'loops_by' are not local to a device"):
        choose_cut(joined("lane").graph(), "jam")
    with pytest.raises(PlacementError, match="its inputs are partitioned by different fields"):
        choose_cut(joined("lane", key="lane").graph(), "jam")


def test_a_task_over_the_merge_of_two_sources_of_one_domain_stands_on_the_device() -> None:
    flow = Flow("roads")
    passes = flow.source("passes", TestingSource[Pass](), out=Pass, partitioned_by="street")
    more = flow.source("more", TestingSource[Pass](), out=Pass, partitioned_by="street")
    keyed = passes.merge("all", more).key_by("street", name="by")
    keyed.reduce("latest", lambda old, new: new).sink("o", Table("o"))
    assert {"all", "by", "latest_order", "latest"} <= choose_cut(flow.graph(), "edge").edge


def test_a_key_that_was_worked_out_is_local_to_no_device() -> None:
    flow = Flow("roads")
    passes = flow.source("passes", TestingSource[Pass](), out=Pass, partitioned_by="street")
    keyed = passes.key_by(lambda p: p.street, name="by")
    keyed.window(global_window()).aggregate("n", out=Number, n=agg.count()).sink("o", Table("o"))
    assert "n_partial" in choose_cut(flow.graph(), "edge").edge


def test_below_what_comes_down_nothing_is_split() -> None:
    flow = Flow("roads")
    passes = flow.source("passes", TestingSource[Pass](), out=Pass)
    worked = passes.key_by("street", name="by").reduce("latest", lambda old, new: new)
    back = worked.key_by("street", name="again").map(faster, name="there").at("edge", device=by_key)
    keyed = back.key_by("street", name="once_more").window(hour())
    keyed.aggregate("n", out=Counted, n=agg.count()).sink("o", JsonLinesFile("counts"))
    with pytest.raises(PlacementError, match="step 'n' cannot be on the edge"):
        make_plan(flow.graph(), "edge")
