"""Windows that Spark runs, without Spark: random flows under every cut equal the reference, whatever the
micro-batches, and however their rows are dealt.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings

from geartrain.planning import Cut, legal_cuts, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_simulation.fleet.stage_run import StageRun
from tests.reference.comparison import check_equal
from tests.reference.flows import Case, native_cases
from tests.reference.interpreter import interpret
from tests.spark.case_log import Logged, answer_of, log_of
from tests.spark.native_run import NativeRun
from tests.spark.stage_run import Sinks, columns_table

CUTS_MAX = 3
NATIVE_MIN = 20


def run_query(query: Query, log: list[Logged], rng: random.Random) -> Sinks:
    """A query over a log in micro-batches of random length."""
    run = NativeRun(query) if query.native else StageRun(query, rng)
    found = Sinks()
    length, end = rng.choice([1, 5, 40]), 0
    while end < len(log):
        start, end = end, min(len(log), end + rng.randrange(1, length + 1))
        rows = [
            (entry.channel, position, columns_table(entry.rows, query.channels[entry.channel]))
            for position, entry in enumerate(log[start:end], start + 1)
            if entry.rows is not None and entry.channel in query.channels
        ]
        clocks = log[end - 1].clocks
        _add(found, run.micro_batch(rows, clocks))
        if query.native and (end == len(log) or rng.random() < 0.3):
            _add(found, run.micro_batch([], clocks))  # as the reader has it where the clock moved
    return found


def _add(found: Sinks, more: Sinks) -> None:
    for sink, batches in more.items():
        found.setdefault(sink, []).extend(batches)


def check_cut(case: Case, cut: Cut, rng: random.Random) -> set[str]:
    """Returns the names of the queries."""
    graph = case.graph
    plan = make_plan(graph, sorted(cut.edge))
    log = list(log_of(plan, case.world, rng))
    found: Sinks = {}
    queries = compile_queries(plan)
    for query in queries:
        _add(found, run_query(query, log, rng))
    check_equal(answer_of(graph, found), interpret(graph, case.world.inputs(), case.world.bounds_us))
    return {query.name for query in queries}


def test_windows_of_spark_in_random_flows_equal_the_reference() -> None:
    native = 0

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(native_cases())
    def check(case: Case) -> None:
        nonlocal native
        rng = case.rng()
        cuts = legal_cuts(case.graph)
        for cut in rng.sample(cuts, min(CUTS_MAX, len(cuts))):
            native += any(name.startswith("native_") for name in check_cut(case, cut, rng))

    check()
    assert native >= NATIVE_MIN


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(native_cases())
def test_windows_that_devices_may_give_as_well_equal_the_reference(case: Case) -> None:
    rng, graph = case.rng(), case.graph
    cuts = [sorted(cut.edge) for cut in legal_cuts(graph)]
    base, chosen = rng.choice(cuts), [rng.choice(cuts) for _ in case.world.devices]
    plan = make_mixed_plan(graph, base, chosen)
    own = [[make_plan(graph, cut, base=base)] for cut in chosen]
    log = list(log_of(plan, case.world, rng, own))
    found: Sinks = {}
    for query in compile_queries(plan):
        _add(found, run_query(query, log, rng))
    check_equal(answer_of(graph, found), interpret(graph, case.world.inputs(), case.world.bounds_us))
