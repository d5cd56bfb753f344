"""The cuts that a device may climb, of examples and of random flows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, seed, settings

from geartrain.planning import choose_cut, legal_cuts
from geartrain.planning.ladder import WORTH, ladder, work_of
from geartrain.planning.splitting import PARTIAL, with_partials
from tests.examples.nexmark_world import graph_of
from tests.planning.test_auto import many_branches
from tests.reference.flows import Case, cases

FLOWS = 40


@seed(20_261_124)
@settings(max_examples=FLOWS, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_each_rung_is_legal_does_more_and_sends_less(case: Case) -> None:
    graph = case.graph
    rungs, legal = ladder(graph), set(legal_cuts(graph))
    assert {rung.cut for rung in rungs} <= legal
    assert rungs[-1].cut == choose_cut(graph)
    least = min(work_of(graph, cut) for cut in legal)
    assert rungs[0].work == min(least, rungs[-1].work)
    for below, above in pairwise(rungs):
        assert below.work < above.work
        assert below.bytes >= above.bytes
    for below, above in pairwise(rungs[:-1]):
        assert above.bytes < below.bytes * (1 - WORTH)
    assert [rung.work for rung in rungs] == [work_of(graph, rung.cut) for rung in rungs]


def test_a_step_that_is_barred_is_on_no_rung() -> None:
    graph = graph_of("q5")
    partials = {step.id for step in with_partials(graph).steps if step.operator.kind == PARTIAL}
    assert partials & ladder(graph)[-1].cut.edge
    barred = ladder(graph, partials)
    assert not any(partials & rung.cut.edge for rung in barred)
    assert barred[0] == ladder(graph)[0]


def test_where_there_are_too_many_cuts_rungs_are_found_without_listing_them() -> None:
    graph = many_branches(20)
    rungs = ladder(graph)
    assert rungs[0].work == work_of(graph, choose_cut(graph, "cloud"))
    assert rungs[-1].cut == choose_cut(graph)
