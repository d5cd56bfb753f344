"""Aggregates that are split, on the host: rows of several devices merged there, stopped and gone on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain import Flow, Table, agg, global_window, sliding
from geartrain.planning import make_plan
from geartrain.testing import TestingSource
from tests.hosting.hosted_run import HostedRun
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import World
from tests.spark.case_log import log_of
from tests.spark.families import Sample, families_flow, families_world, us


class Wide(Sample):
    """Of a window: all that an aggregate may hold."""

    n: int
    spread: float
    opening: float
    best: list[float]
    middle: float
    levels: int


def flow_of_samples() -> Flow:
    flow = Flow("split")
    source: TestingSource[Sample] = TestingSource()
    by_key = flow.source("samples", source, out=Sample).key_by("key")
    parts: dict[str, Any] = {
        "n": agg.count(),
        "spread": agg.variance("x"),
        "opening": agg.first("x"),
        "best": agg.top_n("x", 2),
    }
    parts |= {"middle": agg.quantile("x"), "levels": agg.count_distinct("x"), "x": agg.mean("x")}
    windows = by_key.window(sliding(us(90), us(30)))
    windows.aggregate("wide", out=Wide, **parts).sink("wides", Table("wides"))
    by_key.window(global_window()).aggregate("whole", out=Wide, **parts).sink("wholes", Table("wholes"))
    return flow


def test_rows_of_several_devices_are_merged_into_what_one_step_would_give(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = flow_of_samples().graph()
    plan, rng = make_plan(graph, "edge"), random.Random(5)
    assert plan.edge[-2:] == ("wide_partial", "whole_partial")
    world = families_world(3)
    samples = {device: {"samples": sources["samples"]} for device, sources in world.devices.items()}
    world = World(samples, {"samples": 40})
    log = list(log_of(plan, world, rng))
    run = HostedRun(spark, tmp_path, graph, "edge", rows_max=40)
    run.append(log[: len(log) // 2])
    run.run()
    run.append(log[len(log) // 2 :])
    run.run(batches=1)  # stopped in mid-run
    run.run()
    run.log.close()
    want = interpret(graph, world.inputs(), world.bounds_us)
    assert len(want.sinks["wides"]) > 100
    assert len(want.sinks["wholes"]) == 4
    check_equal(run.answer(), want)


def test_the_families_with_all_that_is_legal_on_the_edge(spark: SparkSession, tmp_path: Path) -> None:
    graph, world = families_flow().graph(), families_world(9)
    plan = make_plan(graph, "edge")
    assert {"hour_partial", "best_partial"} <= set(plan.edge)
    assert "quiet_hour_partial" not in plan.edge  # below a task in the cloud
    run = HostedRun(spark, tmp_path, graph, "edge", rows_max=500)
    run.append(log_of(plan, world, random.Random(6)))
    run.run()
    run.log.close()
    check_equal(run.answer(), interpret(graph, world.inputs(), world.bounds_us))
