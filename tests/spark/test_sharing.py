"""A stream that crosses once and is keyed in the cloud again, on the host."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from geartrain.planning import make_plan
from tests.hosting.hosted_run import HostedRun
from tests.protocol.test_sharing import traffic, world
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.spark.case_log import log_of


def test_records_that_are_keyed_on_both_sides_give_what_the_reference_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph, here = traffic().graph(), world(3)
    plan = make_plan(graph, "edge")
    again = {step.id for step in plan.graph.steps if step.id.endswith("_again")}
    assert again == {"by_street_again", "first_letter_again"}
    run = HostedRun(spark, tmp_path, graph, "edge", rows_max=40)
    run.append(list(log_of(plan, here, random.Random(5))))
    run.run()
    run.log.close()
    check_equal(run.answer(), interpret(graph, here.inputs(), here.bounds_us))
