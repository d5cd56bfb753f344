"""A row of an app whose devices have cuts of their own is explained by all of its records, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain import Flow, Record, Table
from geartrain.planning import make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.logged import LoggedFlow
from geartrain_cloud.explaining.main import _plan
from geartrain_cloud.explaining.question import Question
from geartrain_cloud.log.reader import LogReader
from tests.spark.log_writer import LogWriter


class Reading(Record):
    sensor: str
    value: int


flow = Flow("heat")
_readings = flow.source("readings", TestingSource[Reading](), out=Reading)
_readings.filter(lambda one: one.value > 1, name="flag").sink("flagged", Table("flagged"))
_readings.sink("all", Table("all"))


def test_rows_that_devices_sent_by_different_cuts_are_told_apart(tmp_path: Path) -> None:
    kinds = {"readings": Reading, "readings-flag": Reading}
    writer = LogWriter(tmp_path, "heat", kinds, sources=["readings"], sealed=True)
    writer.append("readings", [(Reading("a", 1), 1, "a/readings", 0)])
    alone = make_plan(flow.graph(), "cloud")
    (chunk,) = LoggedFlow(LogReader(tmp_path), "heat", alone).chunks({"readings"})
    assert len(chunk.rows) == 1
    writer.append("readings-flag", [(Reading("b", 1), 2, "b/readings", 0)])
    writer.close()
    place = ("heat.1", str(tmp_path), "tables", "all", "a", 20)
    plan = _plan(Question(*place, f"{__name__}:flow", "cloud", cuts=("flag",)))
    logged = LoggedFlow(LogReader(tmp_path), "heat", plan)
    for sink, origins in (("all", {"a/readings", "b/readings"}), ("flagged", {"a/readings"})):
        channels = logged.read_by(logged.above(sink))
        found = [one for chunk in logged.chunks(channels) for one in chunk.rows]
        assert {name for one in found for name in one.rows.names} == origins
    with pytest.raises(ExplainError, match="'readings-flag', which a device has sent by a cut"):
        list(LoggedFlow(LogReader(tmp_path), "heat", alone).chunks({"readings"}))
