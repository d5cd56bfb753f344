"""Random flows that go through random revisions in Spark, side by side in one host that is started again."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from geartrain.planning.shuffles import stage_numbers
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.in_process import APP, DEVICES, REVISIONS, RevisedLog, eras_of
from tests.reference.revised_flows import Revised, revised
from tests.reference.revisions import interpret_eras

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOWS = (17, 18, 65, 75)
"""With two or three revisions each, no more shuffles than this, and nothing that a table cannot hold."""
SHUFFLES_MAX = 2
"""Of the query that flows share."""


def want(wanted: Wanted, number: int, flow: Revised, revision: int) -> None:
    plans = [
        {"flow": f"mill.drawn:flow_{number}_{at}", "cut": "cloud", "drops": list(stage.change.drops)}
        for at, stage in enumerate(flow.stages[:revision], 1)
    ]
    newest = {
        "revision": revision,
        "former": plans[:-1],
        "tables": str(wanted.tables(APP)),
        "letters_percent": 100,
    }
    wanted.flows[APP] = {**plans[-1], **newest}
    wanted.write()


def has_brought(log: RevisedLog, folder: Path, revision: int) -> bool:
    """Whether each partition of the log has come to a revision."""
    return revision == 1 or len(LogReader(folder).boundary(APP, revision)) == log.partitions


@pytest.mark.parametrize(
    "number", [*FLOWS[:3], *(pytest.param(one, marks=pytest.mark.long) for one in FLOWS[3:])]
)
def test_each_record_is_run_by_the_revision_of_its_place_in_the_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    flow, rng = revised(random.Random(number), REVISIONS, DEVICES), random.Random(number)
    for stage in flow.stages:
        numbers = stage_numbers(stage.plan.graph, frozenset(stage.plan.cloud))
        assert max(numbers.values()) <= SHUFFLES_MAX
    log = RevisedLog(tmp_path / "log", flow, rng)
    wanted = Wanted(tmp_path, monkeypatch)
    want(wanted, number, flow, 1)
    hosting = Hosting(spark, wanted)
    try:
        for revision in range(1, len(flow.stages) + 1):
            want(wanted, number, flow, revision)
            hosting.until(lambda revision=revision: wanted.status(APP).get("prepared") == revision)  # type: ignore[misc]
            while not log.is_whole and not has_brought(log, tmp_path / "log", revision):
                log.grow(rng)
            hosting.until(lambda revision=revision: wanted.status(APP).get("revision") == revision)  # type: ignore[misc]
            if revision == 2:
                hosting.close()
                hosting = Hosting(spark, wanted)
        while not log.is_whole:
            log.grow(rng)
        hosting.through(APP)
    finally:
        hosting.close()
        log.close()
    answer = interpret_eras(eras_of(flow, log), flow.world.inputs(), flow.world.bounds_us)
    assert sum(map(len, answer.sinks.values())) > 20
    for sink, found in answer.sinks.items():
        table = sink.removesuffix("_out") + "_table"
        held = [tuple(row.values()) for row in rows(wanted.tables(APP), table)] if found else []
        assert sorted(map(repr, held)) == sorted(repr(msgspec.structs.astuple(row.value)) for row in found)
