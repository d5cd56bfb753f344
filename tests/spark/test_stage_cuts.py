"""I1 through the stages of a query, without Spark: random flows under every cut equal the reference, whatever
the micro-batches, and however their rows are dealt.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings

from geartrain.placement import Cut, legal_cuts, make_plan
from geartrain.schema import ColumnBatch
from geartrain_cloud.spark.compile import Query, compile_queries
from tests.reference.comparison import check_equal
from tests.reference.flows import Case, cases
from tests.reference.interpreter import interpret
from tests.spark.case_log import Logged, answer_of, log_of
from tests.spark.stage_run import StageRun, columns_table

CUTS_MAX = 3
Sinks = dict[str, list[ColumnBatch]]


def run_query(query: Query, log: list[Logged], rng: random.Random) -> Sinks:
    """A query over a log in micro-batches of random length."""
    run, found = StageRun(query, rng), Sinks()
    clocks = dict.fromkeys(query.channels, -(2**63))
    positions = dict.fromkeys(query.channels, 0)
    ours = [entry for entry in log if entry.channel in query.channels]
    length = rng.choice([1, 5, 40])
    while ours:
        taken = rng.randrange(1, length + 1)
        rows = []
        for entry in ours[:taken]:
            positions[entry.channel] += 1
            clocks[entry.channel] = entry.clock
            if entry.rows is not None:
                table = columns_table(entry.rows, query.channels[entry.channel])
                rows.append((entry.channel, positions[entry.channel], table))
        ours = ours[taken:]
        for sink, batches in run.micro_batch(rows, min(clocks.values())).items():
            found.setdefault(sink, []).extend(batches)
    return found


def check_cut(case: Case, cut: Cut, rng: random.Random) -> None:
    graph = case.graph
    plan = make_plan(graph, sorted(cut.edge))
    log = list(log_of(plan, case.world, rng))
    found: Sinks = {}
    for query in compile_queries(plan):
        for sink, batches in run_query(query, log, rng).items():
            found.setdefault(sink, []).extend(batches)
    check_equal(answer_of(graph, found), interpret(graph, case.world.inputs(), case.world.bounds_us))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_cuts_of_a_random_flow_through_the_stages_equal_the_reference(case: Case) -> None:
    rng = case.rng()
    cuts = legal_cuts(case.graph)
    for cut in rng.sample(cuts, min(CUTS_MAX, len(cuts))):
        check_cut(case, cut, rng)
