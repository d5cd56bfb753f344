"""The cut of the fewest bytes: found without listing the cuts, and estimated where nothing was measured."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from geartrain import (
    Flow,
    Record,
    Table,
    agg,
    calendar_day,
    every_records,
    every_time,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.declarations.windows import Early
from geartrain.errors import FlowError
from geartrain.graph.graph import Graph
from geartrain.planning import choose_cut, legal_cuts, make_plan
from geartrain.planning.cuts import Cut, Rule, TooManyCutsError
from geartrain.planning.estimate import estimated_bytes, estimated_rows
from geartrain.planning.sharing import rows_of
from geartrain.planning.splitting import with_partials
from geartrain.testing import TestingSource
from geartrain_client.planning.cost import Costs, CutCost, StepCost, StreamCost
from geartrain_client.planning.measure import Measurement
from tests.examples.nexmark_reference import QUERIES
from tests.examples.nexmark_world import graph_of
from tests.reference.flows import Case, cases, check_drawn, split_cases
from tests.reference.sent import example

NEAR_BEST = 1.1
"""What unmeasured `auto` sends, of what the best cut sends that a measurement finds."""
EVENTS, PERIOD_US = 5_000, 1_000
FLOWS = 60


class Word(Record):
    text: str


class Longer(Record):
    text: str
    of: str
    value: float


def longer(word: Word) -> Longer:
    return Longer(word.text, word.text, 0.0)


def measured(graph: Graph) -> Costs:
    """All of it, without CPU times."""
    run = Measurement(graph, cpu_time=lambda: 0.0, clock=SystemClock(), randomness=SystemRandomness())
    costs = asyncio.run(run.run(600))
    assert costs.ended
    return costs


def within(graph: Graph) -> float:
    """What unmeasured `auto` sends, as a multiple of what the best of all cuts does."""
    graph = with_partials(graph)
    costs = measured(graph)
    best = costs.compare(graph, legal_cuts(graph))[0].bytes
    return costs.of_cut(graph, choose_cut(graph, "auto")).bytes / best


@pytest.mark.parametrize("name", ["stocks", "sensors"])
def test_unmeasured_auto_is_near_the_best_cut_of_an_example(name: str, tmp_path: Path) -> None:
    assert within(example(name, tmp_path)) <= NEAR_BEST


@pytest.mark.parametrize("query", QUERIES)
def test_unmeasured_auto_is_near_the_best_cut_of_a_nexmark_query(query: str) -> None:
    graph = graph_of(query)
    options = {step.id: {"events": EVENTS, "period_us": PERIOD_US} for step in graph.sources()}
    assert within(graph.with_options(options)) <= NEAR_BEST


def drawn_costs(graph: Graph, rng: Random, capacity: float = 1e9) -> Costs:
    """Costs by chance, small, so that cuts often cost the same; what is keyed weighs what it was."""
    size = {step.id: rng.choice([0, 1, 2, 3, 10, 30]) for step in graph.steps}
    streams = {
        step.id: StreamCost(1, size[rows_of(graph, step.id)], rng.choice([0.0, 0.1]))
        for step in graph.steps
        if step.out is not None
    }
    steps = {
        step.id: StepCost(1, rng.choice([0.0, 1.0, 5.0]), StreamCost(1, rng.choice([0, 0, 1])))
        for step in graph.steps
    }
    return Costs(100.0, True, 100.0, True, streams, steps, capacity=capacity)


def on_edge(graph: Graph, cut: Cut) -> int:
    """How many steps a cut has on the edge, without those that only give keys."""
    return sum(graph[step].operator.kind != "key_by" for step in cut.edge)


ROUNDS_MAX = 8
"""So often flows are drawn until enough of them have been met."""


def test_the_minimum_cut_is_the_best_of_all_cuts_of_random_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"several": 0, "priced": 0}

    def check(case: Case) -> None:
        graph, rng = with_partials(case.graph), Random(case.seed)
        cuts = legal_cuts(graph)
        for capacity in (1e9, rng.uniform(0, 0.3)):
            costs = drawn_costs(graph, rng, capacity)
            every = costs.compare(graph, cuts)
            with monkeypatch.context() as patch:
                patch.setattr("geartrain.planning.cuts.CUTS_MAX", 0)
                found = costs.of_cut(graph, choose_cut(graph, "auto", costs))
            if capacity > 1:
                check_least(graph, found, every)
                seen["several"] += every[0].bytes < every[-1].bytes
            elif any(one.cpu_share <= capacity for one in every):
                # The price of CPU time finds the lower hull, not every cut: legal and within capacity.
                able = [one.bytes for one in every if one.cpu_share <= capacity]
                assert found.cpu_share <= capacity
                assert min(able) <= found.bytes
                seen["priced"] += every[0].cpu_share > capacity

    for number in range(ROUNDS_MAX):
        for strategy in (cases(), split_cases()):
            check_drawn(check, strategy, number, FLOWS)
        if seen["priced"] > 5:
            break
    assert seen["several"] > FLOWS / 2
    assert seen["priced"] > 5


def check_least(graph: Graph, found: CutCost, every: list[CutCost]) -> None:
    """`found` has the fewest bytes of all cuts, and of those the most steps on the edge."""
    assert found.bytes == every[0].bytes
    equal = [one.cut for one in every if one.bytes == found.bytes]
    assert on_edge(graph, found.cut) == max(on_edge(graph, cut) for cut in equal)


def many_branches(branches: int) -> Graph:
    """A stream of words, made longer, or filtered and made longer, for so many tables."""
    flow = Flow("many")
    words = flow.source("words", TestingSource[Word](), out=Word)
    for number in range(branches):
        few = words.filter(bool, name=f"few{number}")
        few.map(longer, name=f"longer{number}").sink(f"table{number}", Table(f"t{number}"))
    return flow.graph()


def test_a_flow_of_too_many_cuts_to_list_has_a_best_one() -> None:
    graph = many_branches(20)
    with pytest.raises(TooManyCutsError, match="more than 4,096 legal cuts, too many to list: pin some"):
        legal_cuts(graph)
    assert choose_cut(graph, "auto").edge == {"words"}, "twenty halves are more than the whole"
    assert choose_cut(many_branches(1), "auto").edge == {"words", "few0"}, "a half is less"
    sizes = estimated_bytes(graph)
    streams = {step: StreamCost(1, size) for step, size in sizes.items()} | {"words": StreamCost(1, 10**9)}
    costs = Costs(1.0, True, 1.0, True, streams, {step.id: StepCost(1) for step in graph.steps})
    assert make_plan(graph, "auto", costs).cut.edge == {"words", *(f"few{n}" for n in range(20))}


class Reading(Record):
    pump: str
    flow: float
    pressure: float


class Minute(Record):
    pump: str
    most: float
    least: float
    mean: float
    pressure: float
    count: int


class Count(Record):
    pump: str
    count: int


@pytest.mark.parametrize(
    ("every", "window", "aggregated"),
    [
        (None, tumbling(timedelta(minutes=1)), True),
        (None, tumbling(timedelta(seconds=1)), False),
        (timedelta(minutes=1), tumbling(timedelta(minutes=1)), False),
        (timedelta(minutes=1), tumbling(timedelta(hours=1)), True),
        (timedelta(minutes=1), sliding(timedelta(hours=1), timedelta(minutes=1)), False),
        (timedelta(hours=1), calendar_day("Europe/Berlin"), True),
        (timedelta(days=7), calendar_day("Europe/Berlin"), False),
        (timedelta(hours=1), global_window(), True),
        (None, session(timedelta(minutes=1)), False),
    ],
)
def test_a_window_of_many_records_is_aggregated_on_devices(
    every: timedelta | None, window: Any, aggregated: bool
) -> None:
    flow = Flow("water")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, every=every)
    minutes = readings.key_by("pump").window(window)
    columns = {"least": agg.min("flow"), "mean": agg.mean("flow"), "pressure": agg.mean("pressure")}
    most, count = agg.max("flow"), agg.count()
    found = minutes.aggregate("minutes", out=Minute, early=None, most=most, count=count, **columns)
    found.sink("table", Table("minutes"))
    edge = choose_cut(with_partials(flow.graph()), "auto").edge
    assert ("minutes_partial" in edge) is aggregated
    assert "readings" in edge


def test_early_results_count() -> None:
    def rows(early: Early | None) -> float:
        flow = Flow("water")
        readings = flow.source("readings", TestingSource[Reading](), out=Reading)
        minutes = readings.key_by("pump").window(tumbling(timedelta(minutes=1)))
        minutes.aggregate("minutes", out=Count, early=early, count=agg.count()).sink("table", Table("m"))
        return estimated_rows(flow.graph())["minutes"]

    assert rows(None) == pytest.approx(1 / 60)
    assert rows(every_records(4)) == pytest.approx(1 / 60 + 1 / 4)
    assert rows(every_time(timedelta(seconds=10))) == pytest.approx(1 / 60 + 1 / 10)


def test_a_source_with_no_time_between_records_is_refused() -> None:
    with pytest.raises(FlowError, match=r"every=.* give a time that is longer than nothing"):
        Flow("water").source("readings", TestingSource[Reading](), out=Reading, every=timedelta())


def test_a_key_by_that_only_the_cloud_reads_is_left_to_it() -> None:
    graph = graph_of("q11")
    plan = make_plan(graph, "auto")
    assert plan.edge == ("bids",)
    assert plan.reason(plan.graph["bids_by_bidder"]).rule is Rule.ASKED


def test_a_graph_that_is_too_large_to_weigh_is_cut_as_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = many_branches(3)
    monkeypatch.setattr("geartrain.planning.cuts.ESTIMATED_STEPS_MAX", 5)
    assert choose_cut(graph, "auto") == choose_cut(graph, "edge") != choose_cut(graph, "cloud")


def test_options_of_sources_change_no_cut(tmp_path: Path) -> None:
    plain: Any = example("traffic", tmp_path)
    options = {"passes": {"path": str(tmp_path / "other.csv")}}
    assert choose_cut(plain.with_options(options), "auto") == choose_cut(plain, "auto")


def test_every_process_comes_to_the_same_cut() -> None:
    code = (
        "from geartrain.flow.loading import load_flow\n"
        "from geartrain.planning import choose_cut\n"
        "for name in ('traffic', 'sensors', 'nexmark.q3', 'nexmark.q5'):\n"
        "    module = name if '.' in name else name + '.flow'\n"
        "    print(sorted(choose_cut(load_flow(f'geartrain_examples.{module}:flow').graph()).edge))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (1, 2)
    }
    assert len(said) == 1
