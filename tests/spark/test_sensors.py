"""Series of the Numenta Anomaly Benchmark, with duplicates and disorder put in, through the host in one run:
the hours of pandas, and the same bits whether devices or the cloud work them out.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from msgspec.structs import replace
from pyspark.sql import SparkSession

from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.planning import make_plan
from geartrain.source import Split
from geartrain_devices.csv_replay import CsvReplay
from geartrain_examples.sensors.flow import SAMPLE, Sample, flow
from tests.hosting.hosted_run import HostedRun
from tests.reference.two_tiers import World
from tests.spark.case_log import log_of
from tests.spark.many_flows import side_by_side

BOUND = timedelta(minutes=40)
AS_RECORDED: dict[str, Any] = {"as_recorded": True, "out_of_orderness_ms": BOUND // timedelta(milliseconds=1)}


def disturbed(path: Path, seed: int) -> list[str]:
    """Write the benchmark's rows, one in twenty of them twice, no later than the bound allows; its series."""
    chance = random.Random(seed)
    with gzip.open(SAMPLE, "rt") as file:
        header, *rows = csv.reader(file)
    rows += [row for row in rows if chance.random() < 0.05]
    placed = [(datetime.fromisoformat(row[1]) + chance.random() * BOUND, row) for row in rows]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *(row for _, row in sorted(placed))])
    return sorted({row[0] for row in rows})


async def read(split: Split) -> list[tuple[int, Any]]:
    """All of it, which is not in order of time."""
    found: list[tuple[int, Any]] = []
    ended = False
    while not ended:
        poll = await split.read(len(found), 100_000)
        assert not poll.rejects
        found += zip(poll.times, poll.values, strict=True)
        assert poll.position == len(found)
        ended = poll.ended
    assert found != sorted(found, key=lambda row: row[0])
    return found


def world(path: Path, series: Sequence[str]) -> World:
    """Two devices that replay the file as it is, each some of its series."""
    devices = {}
    for name, mine in (("d0", series[::2]), ("d1", series[1::2])):
        source = CsvReplay[Sample](
            path=str(path), time_column="time", partition_column="series", select=list(mine), **AS_RECORDED
        )
        (split,) = source.open(name, "samples", Sample)
        devices[name] = {"samples": {split.name: asyncio.run(read(split))}}
    return World(devices, {"samples": BOUND // timedelta(microseconds=1)})


def unordered(graph: Graph) -> Graph:
    """The flow where nothing is promised of the order of its samples; none of its steps rests on that."""
    step = graph["samples"]
    assert isinstance(step.operator, SourceOperator)
    operator = replace(step.operator, source=step.operator.source.with_options(AS_RECORDED, ""))
    changed = replace(step, operator=operator)
    return replace(graph, steps=tuple(changed if s.id == step.id else s for s in graph.steps))


def hourly(path: Path) -> pd.DataFrame:
    """The hours of pandas."""
    frame = pd.read_csv(path, float_precision="round_trip")
    frame["hour"] = pd.to_datetime(frame["time"], utc=True).dt.floor("h")
    return frame.groupby(["series", "hour"])["value"].agg(["count", "mean", "min", "max"]).reset_index()


def test_hours_are_those_of_pandas_wherever_they_are_worked_out(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "disturbed.csv"
    there = world(path, disturbed(path, seed=5))
    graph = unordered(flow.graph())
    both, worlds = side_by_side([(graph, there), (graph, there)])
    on_devices = [s.id for s in both.steps if s.id.startswith("f0_") and s.id not in ("f0_hours", "f0_odd")]
    plan = make_plan(both, on_devices)
    assert {"f0_hourly", "f0_watch", "f0_watch_order"} <= plan.cut.edge
    run = HostedRun(spark, tmp_path / "run", both, on_devices, rows_max=9_000)
    run.append(log_of(plan, worlds, random.Random(1)))  # batches of many rows
    run.run()
    run.log.close()
    assert run.micro_batches >= 2

    hours, odd = run.records("f1_hours"), run.records("f1_odd")
    assert hours == run.records("f0_hours")
    assert odd == run.records("f0_odd")
    assert 0 < len(odd) < 50
    assert run.sinks().keys() == {"f0_hours", "f0_odd", "f1_hours", "f1_odd"}  # nothing late or refused

    got = {(hour.series, hour.window_start): hour for _, _, hour in hours}
    expected = hourly(path)
    assert len(got) == len(hours) == len(expected)
    for series, start, samples, mean, low, high in expected.itertuples(index=False):
        hour = got[series, start.to_pydatetime().astimezone(UTC)]
        assert (hour.samples, hour.low, hour.high) == (samples, low, high)
        assert abs(hour.mean - mean) <= 1e-9 * max(1.0, abs(mean))
