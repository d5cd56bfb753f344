"""A row of an app whose devices have cuts of their own is not explained by half of its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain import Flow, Record, Table
from geartrain.planning import make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.logged import LoggedFlow
from geartrain_cloud.log.reader import LogReader
from tests.spark.log_writer import LogWriter


class Reading(Record):
    sensor: str
    value: int


def test_rows_that_a_device_sent_by_another_cut_are_named(tmp_path: Path) -> None:
    flow = Flow("heat")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    readings.filter(lambda one: one.value > 1, name="flag").sink("flagged", Table("flagged"))
    readings.sink("all", Table("all"))
    plan = make_plan(flow.graph(), "cloud")
    kinds = {"readings": Reading, "readings-flag": Reading}
    writer = LogWriter(tmp_path, "heat", kinds, sources=["readings"], sealed=True)
    writer.append("readings", [(Reading("a", 1), 1, "a/readings", 0)])
    (chunk,) = LoggedFlow(LogReader(tmp_path), "heat", plan).chunks({"readings"})
    assert len(chunk.rows) == 1
    writer.append("readings-flag", [(Reading("b", 1), 2, "b/readings", 0)])
    writer.close()
    with pytest.raises(ExplainError, match="'readings-flag', which a device with a cut of its own"):
        list(LoggedFlow(LogReader(tmp_path), "heat", plan).chunks({"readings"}))
