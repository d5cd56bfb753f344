"""Which query runs what: every sink once, every stateful step once, every dead letter once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geartrain import Flow, Table
from geartrain.errors import PlacementError
from geartrain.graph import Graph, Input, Step
from geartrain.placement import Cut, Plan, legal_cuts, make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import Query, compile_queries
from tests.spark.flows import Adding, Reading, sums_flow


def test_cloud_cut_has_two_queries() -> None:
    stateless, keyed = compile_queries(make_plan(sums_flow().graph(), "cloud"))
    assert (stateless.name, keyed.name) == ("stateless", "keyed")
    assert set(stateless.channels) == {"readings", "_dead_letters", "_late"}
    assert stateless.sinks == ("kept", "_dead_letters", "_late")
    assert stateless.prefix == {"positive", "kept"}
    assert not stateless.keyed
    assert set(keyed.channels) == {"readings"}
    assert keyed.prefix == {"positive", "by_sensor"}
    assert keyed.keyed == {"adding", "each", "last"}
    assert keyed.sinks == ("each", "last", "_dead_letters")
    assert keyed.boundaries == ("by_sensor",)
    assert stateless.owned == {"kept"}
    assert keyed.owned == {"positive", "by_sensor", "adding", "each", "last"}


def test_edge_cut_needs_no_state_in_the_cloud() -> None:
    (query,) = compile_queries(make_plan(sums_flow().graph(), "auto"))
    assert query.direct["adding"] == ("each", "last")
    assert query.direct["positive"] == ("kept",)
    assert query.prefix == frozenset()


@pytest.mark.parametrize("number", range(len(legal_cuts(sums_flow().graph()))))
def test_each_sink_and_stateful_step_and_letter_has_one_query(number: int) -> None:
    graph = sums_flow().graph()
    cut = legal_cuts(graph)[number]
    plan = make_plan(graph, sorted(cut.edge))
    queries = compile_queries(plan)
    assert plan.cut == cut
    sinks = [sink for query in queries for sink in query.sinks if sink != "_dead_letters"]
    assert sorted(sinks) == ["_late", "each", "kept", "last"]
    owned = [step for query in queries for step in query.owned]
    assert sorted(owned) == sorted(plan.cloud)
    stateful = [s for query in queries for s in query.keyed if graph[s].operator.stateful]
    assert stateful == (["adding"] if "adding" in plan.cloud else [])
    for query in queries:
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


def _by_hand(*steps: Step) -> Plan:
    graph = sums_flow().graph()
    ids = {s.id for s in steps}
    every = Graph("sums", (*(s for s in graph.steps if s.id not in ids), *steps))
    return Plan(every, Cut(frozenset({"readings"})), ())


def test_state_below_state_is_refused() -> None:
    graph = sums_flow().graph()
    again = replace(graph["by_sensor"], id="again", inputs=(Input("adding"),))
    second = replace(graph["adding"], id="second", inputs=(Input("again"),))
    with pytest.raises(PlacementError, match="'second' keeps state below 'adding'"):
        compile_queries(_by_hand(again, second))


def test_state_must_follow_its_key_by() -> None:
    graph = sums_flow().graph()
    between = replace(graph["positive"], id="between", inputs=(Input("by_sensor"),))
    late = replace(graph["adding"], id="late_adding", inputs=(Input("between"),))
    with pytest.raises(PlacementError, match="read a key_by directly, not 'between'"):
        compile_queries(_by_hand(between, late))


def test_two_keys_over_one_stream_share_the_query() -> None:
    flow = Flow("two")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    for name in ("one", "two"):
        summed = readings.key_by("sensor", name=f"by_{name}").process(f"adding_{name}", Adding())
        summed.sink(f"sink_{name}", Table(f"table_{name}"))
    stateless, keyed = compile_queries(make_plan(flow.graph(), "cloud"))
    assert stateless.sinks == ("_dead_letters", "_late")
    assert set(stateless.channels) == {"_dead_letters", "_late"}
    assert keyed.boundaries == ("by_one", "by_two")
