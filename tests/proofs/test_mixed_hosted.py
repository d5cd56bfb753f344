"""A hosted flow takes in devices with other cuts by a revision, and goes on from its state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain.planning import make_plan
from geartrain.records.batch import Batch
from geartrain.runtime.fragment import Fragment
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill.flows import flow0
from tests.hosting.mill.records import Reading, Sum
from tests.hosting.mill_log import MillLog, Row
from tests.spark.log_writer import LogWriter

pytestmark = [pytest.mark.slow, pytest.mark.spark]

APP = "fleet.1"
BASE, CUTS = "cloud", ["above", "adding"]
KINDS = {"readings": Reading, "above": Reading, "above-adding-by_sensor": Reading, "adding": Sum}


class Sender:
    """A device's part of the flow under one cut, whose output goes straight into the log."""

    def __init__(self, cut: str) -> None:
        plan = make_plan(flow0.graph(), cut, base=BASE)
        self._fragment = Fragment(plan.graph, plan.edge, names=plan.names)

    def send(self, log: LogWriter, records: Sequence[Row]) -> set[str]:
        """Send what becomes of some readings; returns the channels."""
        values, times, names, numbers = map(list, zip(*records, strict=True))
        self._fragment.feed("readings", Batch(values, times, names, numbers))
        found = self._fragment.take().batches
        for channel, batches in found.items():
            rows: list[tuple[Any, int, str, int]] = [
                (value, batch.times[row], batch.origin(row).name, batch.origin(row).number)
                for batch in batches
                for row, value in enumerate(batch.values)
            ]
            log.append(channel, rows, rows_per_entry=50, clock=None)
        log.advance(times[-1])
        return set(found)


def taken(log: MillLog, device: str, count: int) -> list[Row]:
    """The next readings of a device, which has sensors and a split of its own."""
    first = len(log.records)
    found = [
        (Reading(f"{device}{number % 7}", float(number % 12)), 1_700_000_000_000_000 + number * 5_000)
        for number in range(first, first + count)
    ]
    rows: list[Any] = [
        (value, time, f"readings/{device}", first + at) for at, (value, time) in enumerate(found)
    ]
    log.records += rows
    return rows


def test_devices_with_other_cuts_come_in_while_a_flow_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add(APP, 0)
    log.writer = LogWriter(tmp_path / "log", APP, KINDS, sources=["readings"])
    first = {"flow": "mill.flows:flow0", "cut": BASE}
    wanted.flows[APP] |= first
    wanted.write()
    hosting = Hosting(spark, wanted)
    plain, stateless, strong = Sender(BASE), Sender("above"), Sender("adding")
    try:
        assert plain.send(log.writer, taken(log, "a", 120)) == {"readings"}
        hosting.through(APP)
        wanted.flows[APP] |= {"revision": 2, "cuts": CUTS, "former": [first]}
        wanted.write()
        hosting.until(lambda: wanted.status(APP)["prepared"] == 2)
        log.writer.revise(2)
        assert plain.send(log.writer, taken(log, "a", 80)) == {"readings"}
        assert strong.send(log.writer, taken(log, "b", 150)) == {"above-adding-by_sensor", "adding"}
        assert stateless.send(log.writer, taken(log, "a", 90)) == {"above"}  # it has gone over
        hosting.through(APP)
        assert wanted.status(APP)["revision"] == 2
        assert plain.send(log.writer, taken(log, "a", 60)) == {"readings"}  # and back
        log.writer.end()
        hosting.through(APP)
        log.assert_tables(wanted.tables(APP))
    finally:
        hosting.close()
        wanted.close()
