"""The NEXMark flows on the host, all of them in one run: whatever a device need not do is done there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.examples.nexmark_reference import QUERIES
from tests.examples.nexmark_world import dealt, events, graph_of, rows_of
from tests.hosting.hosted_run import HostedRun
from tests.spark.case_log import log_of
from tests.spark.many_flows import prefix_of, side_by_side

EVENTS, PERIOD_US = 1_000, 60_000  # a minute


@pytest.mark.slow
@pytest.mark.spark
def test_spark_answers_as_plain_python_does(spark: SparkSession, tmp_path: Path) -> None:
    house = events(EVENTS, PERIOD_US)
    graphs = {query: graph_of(query) for query in QUERIES}
    flows, world = side_by_side((graph, dealt(graph, house, 2)) for graph in graphs.values())
    run = HostedRun(spark, tmp_path / "run", flows, rows_max=100_000)
    run.append(log_of(run.plan, world, random.Random(1)))
    run.run()
    run.log.close()
    answer = run.answer()
    assert not answer.dead
    assert not answer.late
    for number, (query, graph) in enumerate(graphs.items()):
        (sink,) = graph.sinks()
        found = [row.value for row in answer.sinks[prefix_of(number) + sink.id]]
        assert rows_of(graph, found) == QUERIES[query]([one for _, one in house]), query
