"""Which stage of a query runs what: every sink once, every stateful step once, every dead letter once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.errors import PlacementError
from geartrain.graph.graph import Graph, Input, Step
from geartrain.graph.operator import Keyed, Services, Transform
from geartrain.operators.join import WindowJoin
from geartrain.operators.log import Log
from geartrain.operators.merge import Merge
from geartrain.operators.order import Order
from geartrain.operators.sink import SinkOperator
from geartrain.planning import Channel, Cut, Plan, legal_cuts, make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import Query, hosted_query
from tests.spark.flows import Adding, Reading, Sum, sums_flow


def test_a_cloud_cut_has_a_stage_behind_its_key() -> None:
    query = hosted_query(make_plan(sums_flow().graph(), "cloud"))
    assert set(query.channels) == {"readings", "_dead_letters", "_late"}
    assert query.prefix == {"positive", "kept", "by_sensor"}
    assert query.keyed == {"adding", "each", "last"}
    assert [(b.stream, b.entry, b.dealing) for b in query.stages[1].inputs] == [
        ("by_sensor", "by_sensor", "key")
    ]


def test_edge_cut_needs_no_state_in_the_cloud() -> None:
    query = hosted_query(make_plan(sums_flow().graph(), "edge"))
    assert query.direct["adding"] == ("each", "last")
    assert query.direct["positive"] == ("kept",)
    assert query.prefix == frozenset()


@pytest.mark.parametrize("number", range(len(legal_cuts(sums_flow().graph()))))
def test_each_sink_and_stateful_step_and_letter_is_in_the_query_once(number: int) -> None:
    graph = sums_flow().graph()
    cut = legal_cuts(graph)[number]
    plan = make_plan(graph, sorted(cut.edge))
    query = hosted_query(plan)
    assert plan.cut == cut
    assert sorted(query.sinks) == ["_dead_letters", "_late", "each", "kept", "last"]
    assert query.owned == {*plan.cloud, *(channel.id for channel in plan.channels)}
    stateful = [s for stage in query.stages[1:] for s in stage.steps if graph[s].operator.stateful]
    assert stateful == (["adding"] if "adding" in plan.cloud else [])
    assert _runs_whole(query, plan)


def _runs_whole(query: Query, plan: Plan) -> bool:
    """Every cloud step above a sink of the query is in it, or the sink takes a channel as it is."""
    direct = {sink for sinks in query.direct.values() for sink in sinks}
    needed = {
        step
        for sink in query.sinks
        if sink not in direct and not sink.startswith("_")
        for step in plan.graph.ancestors(sink)
        if step in plan.cloud
    }
    return needed <= query.prefix | query.keyed


def hand_made(*steps: Step) -> Plan:
    """The flow of the sums with further steps, all but its source in the cloud."""
    graph = sums_flow().graph()
    every = Graph("sums", (*graph.steps, *steps))
    return Plan(every, Cut(frozenset({"readings"})), (Channel("readings", Reading, frozenset({"readings"})),))


def stages_of(query: Query) -> list[set[str]]:
    return [set(stage.steps) for stage in query.stages]


def deals_of(query: Query) -> set[tuple[str, int, str]]:
    return {(b.stream, b.stage, b.dealing) for stage in query.stages for b in stage.inputs}


class Lookup(Keyed, frozen=True):
    """Stands for an operator with a small second input."""

    kind = "lookup"
    broadcast_ports = (1,)

    def open(self, services: Services) -> Transform:
        return lambda batch: batch


def a_sink(step: str, reads: str) -> Step:
    return Step(step, SinkOperator(Table(f"table_{step}")), (Input(reads),))


def test_each_key_below_a_state_is_a_stage_of_its_own() -> None:
    graph = sums_flow().graph()
    again = replace(graph["by_sensor"], id="again", inputs=(Input("adding"),), out=Sum)
    second = replace(graph["adding"], id="second", inputs=(Input("again"),), out=Sum)
    third = replace(second, id="third")
    query = hosted_query(
        hand_made(again, second, third, a_sink("seconds", "second"), a_sink("thirds", "third"))
    )
    first = {"adding", "each", "last", "again"}
    below = {"second", "third", "seconds", "thirds"}
    assert stages_of(query) == [{"positive", "by_sensor", "kept"}, first, below]
    assert deals_of(query) == {("by_sensor", 1, "key"), ("again", 2, "key")}


def test_a_task_stays_where_its_records_were_put_in_order() -> None:
    graph = sums_flow().graph()
    order = Step("adding_order", Order(), (Input("by_sensor"),), Reading)
    second = replace(graph["adding"], id="second", inputs=(Input("adding_order"),))
    logged = replace(order, id="logged", operator=Log(), inputs=(Input("adding_order"),))
    third = replace(graph["adding"], id="third", inputs=(Input("logged"),))
    query = hosted_query(hand_made(order, second, logged, third, a_sink("seconds", "second")))
    together = {"adding", "each", "last", "adding_order", "second", "seconds", "logged", "third"}
    assert stages_of(query)[1:] == [together]
    assert deals_of(query) == {("by_sensor", 1, "key")}


def test_streams_of_several_stages_meet_below_the_last_of_them() -> None:
    graph = sums_flow().graph()
    again = replace(graph["by_sensor"], id="again", inputs=(Input("adding"),), out=Sum)
    meeting = Step("meeting", WindowJoin(None, "inner", max), (Input("again"), Input("by_sensor")), Sum)  # type: ignore[arg-type]
    merged = Step("merged", Merge(), (Input("meeting"), Input("adding")), Sum)
    query = hosted_query(hand_made(again, meeting, merged, a_sink("both", "merged")))
    assert stages_of(query)[2] == {"meeting", "merged", "both"}
    assert deals_of(query) == {
        ("by_sensor", 1, "key"),
        ("by_sensor", 2, "key"),
        ("again", 2, "key"),
        ("adding", 2, "origin"),
    }


def test_a_stream_may_be_both_sides_of_a_broadcast() -> None:
    look = Step("look", Lookup(), (Input("positive"), Input("positive")), Reading)
    merged = Step("merged", Merge(), (Input("look"), Input("positive")), Reading)
    query = hosted_query(hand_made(look, merged, a_sink("looked", "merged")))
    stage = query.stages[1]
    entries = {b.dealing: b.entry for b in stage.inputs if b.stream == "positive"}
    assert entries == {"origin": "positive", "all": "positive_all"}
    assert [i.step for i in stage.graph["look"].inputs] == ["positive", "positive_all"]
    assert [i.step for i in stage.graph["merged"].inputs] == ["look", "positive"]
    assert query.stages[0].graph is query.graph


def test_state_without_a_key_is_refused() -> None:
    graph = sums_flow().graph()
    late = replace(graph["adding"], id="late_adding", inputs=(Input("positive"),))
    with pytest.raises(PlacementError, match="the records of 'positive' have no key: put a key_by between"):
        hosted_query(hand_made(late))


def test_two_keys_over_one_stream_share_a_stage() -> None:
    flow = Flow("two")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    for name in ("one", "two"):
        summed = readings.key_by("sensor", name=f"by_{name}").process(f"adding_{name}", Adding())
        summed.sink(f"sink_{name}", Table(f"table_{name}"))
    query = hosted_query(make_plan(flow.graph(), "cloud"))
    assert set(query.channels) == {"readings", "_dead_letters", "_late"}
    assert deals_of(query) == {("by_one", 1, "key"), ("by_two", 1, "key")}
    assert len(query.stages) == 2
