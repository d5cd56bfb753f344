"""Windows that Spark runs give the same bits as those of our runtime: the same flow twice in one run, against
the reference, through a stop and a new start.
"""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from geartrain import Flow, Record, Table, agg, sliding, tumbling
from geartrain.planning import make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import compile_queries
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import World
from tests.spark.case_log import answer_of, log_of
from tests.spark.many_flows import side_by_side
from tests.spark.spark_run import SparkRun

BOUND_US = 3_000


class Sample(Record):
    """What windows may be of."""

    name: str
    group: int
    n: int
    perhaps: int | None
    flag: bool
    x: float


class Summary(Record):
    """Of a window, by name."""

    name: str
    window_start: int
    window_end: int
    revision: int
    records: int
    known: int
    sum_n: int
    flags: int
    least: int
    most: int
    first_name: str
    any_flag: bool
    low: int | None


class Sums(Record):
    """Of a window, by group or flag: the sum is a dead letter where there is none."""

    key: int
    sum_perhaps: int


class Flags(Record):
    """Of a window, by flag."""

    flag: bool
    window_start: int
    names: int
    last: str


class Unordered(TestingSource[Any]):
    in_order = False


class Modern(Unordered):
    since_1970 = True


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def even(summary: Summary) -> Summary:
    if summary.records % 5 == 0:
        raise ValueError("five are refused")
    return summary


def windows_flow(source: TestingSource[Any]) -> Flow:
    flow = Flow("windows")
    samples = flow.source("samples", source, out=Sample)
    sums = {
        "records": agg.count(),
        "known": agg.count("perhaps"),
        "sum_n": agg.sum("n"),
        "flags": agg.sum("flag"),
        "least": agg.min("n"),
        "most": agg.max("n"),
        "first_name": agg.min("name"),
        "any_flag": agg.max("flag"),
        "low": agg.min("perhaps"),
    }
    by_name = samples.key_by("name", name="by_name").window(tumbling(ms(20)))
    held: Any = sums
    summaries = by_name.aggregate("summaries", out=Summary, **held)
    summaries.sink("all", Table("all"))
    summaries.map(even, name="even").filter(lambda s: s.records > 1, name="several").sink(
        "some", Table("some")
    )
    groups = samples.key_by("group", name="by_group").window(sliding(ms(30), ms(10), offset=ms(7)))
    groups.aggregate("groups", out=Sums, sum_perhaps=agg.sum("perhaps")).sink("sums", Table("sums"))
    flags = samples.key_by("flag", name="by_flag").window(sliding(ms(4), ms(25)))
    flags.aggregate("flags", out=Flags, names=agg.count("name"), last=agg.max("name")).sink(
        "flag", Table("flag")
    )
    return flow


def world(seed: int) -> World:
    chance = random.Random(seed)

    def sample(number: int) -> tuple[int, Sample]:
        large = chance.random() < 0.1
        name = chance.choice(["a", "b", "ü", "\0", "c\0d", "\U0001f600", "\uffff"])
        n = chance.choice([2**63 - 1, -(2**63), 2**62]) if large else chance.randrange(-50, 50)
        perhaps = None if chance.random() < 0.4 else chance.choice([n, chance.randrange(9)])
        value = Sample(name, chance.randrange(-2, 3), n, perhaps, chance.random() < 0.5, chance.random())
        return max(0, number * 700 + chance.randrange(-1_500, 1_500)), value

    devices = {
        name: {"samples": {f"{name}/samples": [sample(n) for n in range(180)]}} for name in ("d0", "d1")
    }
    return World(devices, {"samples": BOUND_US})


def test_native_windows_are_those_of_the_runtime_and_of_the_reference(
    spark: SparkSession, tmp_path: Path
) -> None:
    there = world(4)
    both, worlds = side_by_side(
        [(windows_flow(Modern()).graph(), there), (windows_flow(Unordered()).graph(), there)]
    )
    plan = make_plan(both, "cloud")
    names = [query.name for query in compile_queries(plan)]
    assert names == ["stateless", "keyed", "native_f0_summaries", "native_f0_groups", "native_f0_flags"]
    log = list(log_of(plan, worlds, random.Random(0)))
    run = SparkRun(spark, tmp_path, plan, rows_max=200)
    half = len(log) // 2
    run.append(log[:half])
    run.run(batches=1)
    run.append(log[half:])
    run.run()
    run.log.close()
    assert min(len(run.store.batches[name]) for name in names[2:]) >= 4
    found = answer_of(both, run.store.sinks)
    want = interpret(both, worlds.inputs(), worlds.bounds_us)
    assert {step for step, *_ in want.dead} >= {"f0_summaries", "f0_even", "f0_groups", "f1_groups"}
    check_equal(found, want)
