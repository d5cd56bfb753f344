"""A random flow as one hosted query, stage by stage without Spark, gives what the reference gives."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain.planning import legal_cuts, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain_cloud.spark.compile import hosted_query
from tests.reference.comparison import check_equal
from tests.reference.flows import Case, cases, native_cases, split_cases
from tests.reference.interpreter import interpret
from tests.spark.case_log import answer_of, log_of
from tests.spark.test_stage_cuts import run_query

CUTS_MAX = 2


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(cases(), split_cases(), native_cases()))
def test_a_hosted_query_equals_the_reference_under_every_cut(case: Case) -> None:
    rng, graph = case.rng(), case.graph
    cuts = legal_cuts(graph)
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    for cut in rng.sample(cuts, min(CUTS_MAX, len(cuts))):
        plan = make_plan(graph, sorted(cut.edge))
        query = hosted_query(plan)
        assert not query.native
        log = list(log_of(plan, case.world, rng))
        check_equal(answer_of(graph, run_query(query, log, rng)), want)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(cases(), split_cases()))
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
