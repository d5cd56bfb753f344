"""What waits for time survives a restart: timers, held records, windows and half joins, in every stage."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from geartrain_cloud.spark.buckets import BucketState
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.stage_run import LABELS, LogRow, StageRun
from tests.hosting.hosted_run import HostedRun
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.spark.case_log import Logged
from tests.spark.families import WAITING, families_flow, families_log, families_plan, families_world
from tests.spark.stage_run import columns_table


def waiting(run: StageRun) -> Counter[str]:
    """How many cells of each step want to be woken."""
    found: Counter[str] = Counter()
    for (number, _), state in run.states.items():
        saved = BucketState(state, len(LABELS))
        for step in run.query.stages[number].steps:
            found[step] += len(list(saved.due(step, 2**63 - 2)))
    return found


def micro_batch(run: StageRun, part: list[Logged], at: int) -> None:
    rows: list[LogRow] = []
    for number, entry in enumerate(part, start=at + 1):
        if entry.rows is not None:
            table = columns_table(entry.rows, run.query.channels[entry.channel])
            rows.append((entry.channel, number, table))
    run.micro_batch(rows, part[-1].clocks)


def test_all_that_waits_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    plan, world = families_plan(), families_world(7)
    log = families_log(world)
    half = len(log) // 2

    model = StageRun(hosted_query(plan), random.Random(2))
    micro_batch(model, log[:half], 0)
    held = waiting(model)
    assert {step for step in WAITING if not held[step]} == set()

    run = HostedRun(spark, tmp_path, families_flow().graph(), rows_max=120)
    run.append(log[:half])
    run.run()  # up to here, then a new start from the checkpoint
    last = max(number for number, entry in enumerate(log) if entry.rows is not None)
    run.append(log[half : last + 1])  # a stop in mid-run is proved with random flows
    run.run()
    before = {sink: sum(map(len, batches)) for sink, batches in run.sinks().items()}
    run.append(log[last + 1 :])  # from here on, only the clock moves
    run.run()
    run.log.close()
    after = {sink: sum(map(len, batches)) for sink, batches in run.sinks().items()}
    assert {sink for sink in before if after[sink] > before[sink]} >= {"silences", "hours", "wholes"} & {
        *before
    }
    assert "wholes" not in before
    assert run.micro_batches >= 3
    check_equal(run.answer(), interpret(plan.graph, world.inputs(), world.bounds_us))
