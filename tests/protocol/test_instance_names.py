"""One flow under the name of an instance: the name stands where the flow's stood."""

from __future__ import annotations

import re

import pytest

from geartrain.errors import FlowError
from geartrain.flow.flow import Flow
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import Graph, check_instance
from geartrain.planning import legal_cuts, make_plan
from geartrain.wire.topics import ack_topic, downack_topic, flow_down_topic, parse_up, up_topic

FLOWS = ("stocks", "traffic", "control_loop")
PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What the names of topics, files and PostgreSQL schemas may hold, as a test of its own sees it."""


def graph_of(name: str) -> Graph:
    return load_flow(f"geartrain_examples.{name}.flow:flow").graph()


@pytest.mark.parametrize("name", FLOWS)
def test_every_cut_of_an_instance_is_that_of_its_flow_under_another_name(name: str) -> None:
    graph, instance = graph_of(name), graph_of(name).named(f"{name}.12")
    for cut in ("auto", *(tuple(sorted(cut.edge)) for cut in list(legal_cuts(graph))[:20])):
        ours, theirs = make_plan(instance, cut), make_plan(graph, cut)
        assert ours.graph.name == f"{name}.12"
        assert [s.id for s in ours.graph.steps] == [s.id for s in theirs.graph.steps]
        assert (ours.cut.edge, [c.id for c in ours.channels]) == (
            theirs.cut.edge,
            [c.id for c in theirs.channels],
        )


def test_a_name_that_is_no_instance_is_refused() -> None:
    graph = graph_of("stocks")
    wrong = ["stocks", "stocks.", "stocks.0", "stocks.03", ".3", "a.b.3", "a-b.3", "3.3", "a.3\n", "a.٣"]
    for name in [*wrong, "a" * 62 + ".1", "a.1234567890"]:
        with pytest.raises(FlowError, match=r"^instance .*such as traffic\.3"):
            graph.named(name)
    assert graph.named("") is graph
    with pytest.raises(FlowError, match="use a name of letters"):
        Flow("stocks.3")


@pytest.mark.parametrize("instance", ["traffic.3", "a" * 61 + ".1", "T_1.999999999"])
def test_an_instance_names_topics_files_and_schemas(instance: str) -> None:
    check_instance(instance)
    assert PLAIN.fullmatch(instance)
    assert len(instance.encode()) <= 63  # a PostgreSQL schema's
    assert parse_up(up_topic("truck-1", instance)) == ("truck-1", instance)
    topics = [ack_topic("d", instance), downack_topic("d", instance), flow_down_topic("d", instance)]
    assert all(topic.split("/")[-2] == instance for topic in topics)
    assert all("+" not in topic and "#" not in topic for topic in topics)
