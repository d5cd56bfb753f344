"""I1 on the host, in the small: a few random flows in one run, stopped in the middle and gone on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from geartrain.planning import make_plan
from geartrain.planning.mixed import make_mixed_plan
from tests.hosting.hosted_run import HostedRun
from tests.reference.comparison import check_equal
from tests.reference.flows import Case, cases, drawn, split_cases, whole_cases
from tests.spark.case_log import log_of
from tests.spark.many_flows import kinds, many

FLOWS = 8
BATCHES = 3
"""About so many micro-batches has the log of a run."""


def chosen(number: int, *, examples: int, start: int) -> list[Case]:
    """`number` of `examples` random flows: first those that bring most kinds of operators not seen twice."""
    found = drawn(st.one_of(cases(), cases(), split_cases(), whole_cases()), start, examples)
    waiting = [(case, kinds(case)) for case in found]
    taken: list[Case] = []
    seen: dict[str, int] = {}
    while len(taken) < number:
        best = max(waiting, key=lambda one: (sum(seen.get(k, 0) < 2 for k in one[1]), len(one[0].code)))
        waiting = [one for one in waiting if one is not best]
        taken.append(best[0])
        for kind in best[1]:
            seen[kind] = seen.get(kind, 0) + 1
    return taken


def check_flows(
    spark: SparkSession,
    folder: Path,
    flows: list[Case],
    number: int,
    *,
    restart: bool,
    mixed: bool = False,
) -> None:
    """One run of several flows, each under one of its cuts; restart: stopped in mid-run and gone on; mixed:
    each device has cuts of its own.
    """
    together, rng = many(flows), random.Random(number)
    cut, *cuts = together.cuts(rng) if mixed else [together.cut(rng)]
    graph = together.graph
    plan = make_mixed_plan(graph, cut, cuts)
    own = [[make_plan(graph, one, base=cut)] for one in cuts] if mixed else None
    log = list(log_of(plan, together.world, rng, own))
    rows = sum(len(entry.rows) for entry in log if entry.rows is not None)
    run = HostedRun(spark, folder, graph, cut, cuts, rows_max=rows // BATCHES + 1)
    half = len(log) // 2
    run.append(log[:half])
    run.run(batches=1 if restart else None)
    if restart:
        run.lose_the_last_commit()
    run.append(log[half:])
    run.run()
    run.log.close()
    try:
        check_equal(run.answer(), together.answer())
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), f"cuts: {[cut, *cuts]}", *map(repr, flows)])) from error


@pytest.mark.proof
def test_random_flows_on_the_host_equal_the_reference(spark: SparkSession, tmp_path: Path) -> None:
    flows = chosen(FLOWS, examples=60, start=1)
    check_flows(spark, tmp_path, flows, 1, restart=True)
