"""A random flow as one hosted query, stage by stage without Spark, gives what the reference gives."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain.graph.graph import Graph
from geartrain.planning import Cut, legal_cuts, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.splitting import PARTIAL, with_partials
from geartrain_cloud.spark.compile import hosted_query
from tests.reference.comparison import check_equal, drawn_cuts, stateful
from tests.reference.flows import Case, cases, drawn, split_cases, whole_cases
from tests.reference.interpreter import interpret
from tests.reference.moving_flows import moving_cases
from tests.spark.case_log import answer_of, log_of
from tests.spark.stage_run import run_query

CUTS_MAX = 3
FLOWS = 60
"""Whose devices leave steps with state to the cloud."""


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(cases(), cases(), split_cases(), whole_cases()))
def test_a_hosted_query_equals_the_reference_under_every_cut(case: Case) -> None:
    rng, graph = case.rng(), case.graph
    cuts = legal_cuts(graph)
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    for cut in rng.sample(cuts, min(CUTS_MAX, len(cuts))):
        plan = make_plan(graph, sorted(cut.edge))
        query = hosted_query(plan)
        log = list(log_of(plan, case.world, rng))
        check_equal(answer_of(graph, run_query(query, log, rng)), want)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(cases(), split_cases(), whole_cases()))
def test_a_hosted_query_for_devices_with_cuts_of_their_own_equals_the_reference(case: Case) -> None:
    rng, graph = case.rng(), case.graph
    cuts = [sorted(cut.edge) for cut in legal_cuts(graph)]
    base, chosen = rng.choice(cuts), [rng.choice(cuts) for _ in case.world.devices]
    plan = make_mixed_plan(graph, base, chosen)
    own = [[make_plan(graph, cut, base=base)] for cut in chosen]
    query = hosted_query(plan)
    log = list(log_of(plan, case.world, rng, own))
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    check_equal(answer_of(graph, run_query(query, log, rng)), want)


def leaving(graph: Graph, cuts: list[Cut], rng: random.Random) -> list[Cut]:
    """Cuts to which a device goes over one after another: steps with state leave it, and none comes."""
    found = [max(rng.choices(cuts, k=4), key=lambda cut: len(stateful(graph, cut)))]
    for _ in range(rng.randint(1, 3)):
        kept = stateful(graph, found[-1]) - partials(graph)
        fitting = [cut for cut in cuts if stateful(graph, cut) - partials(graph) <= kept and cut != found[-1]]
        found += rng.sample(fitting, min(1, len(fitting)))
    return found


def partials(graph: Graph) -> frozenset[str]:
    return frozenset(s.id for s in with_partials(graph).steps if s.operator.kind == PARTIAL)


def test_devices_that_leave_steps_with_state_to_the_query_equal_the_reference() -> None:
    seen = Counter[str]()
    for case in drawn(moving_cases(), 4, FLOWS):
        rng, graph = case.rng(), case.graph
        cuts = drawn_cuts(graph, rng, 16)
        base = sorted(rng.choice(cuts).edge)
        chosen = [leaving(graph, cuts, rng) for _ in case.world.devices]
        plan = make_mixed_plan(graph, base, [sorted(cut.edge) for several in chosen for cut in several])
        own = [[make_plan(graph, sorted(cut.edge), base=base) for cut in several] for several in chosen]
        log = list(log_of(plan, case.world, rng, own, seen))
        want = interpret(graph, case.world.inputs(), case.world.bounds_us)
        try:
            check_equal(answer_of(graph, run_query(hosted_query(plan), log, rng)), want)
        except AssertionError as error:
            raise AssertionError(f"{case!r}\n{error}") from error
    assert seen["cells"] > FLOWS // 4, seen
