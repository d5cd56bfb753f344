"""Flows of one group that raise, end their worker, hang, or whose table is locked.

Each is named and put out or held, and comes back mended with its state. The others' tables are what plain
Python makes of their records.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import EXIT, HANG, RAISE, SLOW

pytestmark = pytest.mark.slow

HANG_S = 20.0
"""Longer than a busy machine keeps the flows that do nothing wrong from coming back."""


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    return Wanted(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("value", "hang_s", "why"),
    [
        (RAISE, 600.0, "CannotGoOn: this flow raises"),
        (EXIT, 600.0, "its code ended the process that ran it"),
        (HANG, HANG_S, "its code did not come back within 20 s"),
    ],
)
def test_a_guilty_flow_is_put_out_and_comes_back_mended(
    spark: SparkSession, wanted: Wanted, value: float, hang_s: float, why: str
) -> None:
    good, bad = wanted.add("good.1", 0), wanted.add("bad.1", 4)
    good.append(200)
    bad.append(200)
    wanted.write()
    hosting = Hosting(spark, wanted, hang_s=hang_s)
    try:
        hosting.through("good.1", "bad.1")
        bad.append(60, [value])
        bad.append(40)
        good.append(100)
        hosting.until(lambda: wanted.status("bad.1")["state"] == "out")
        good.append(100)
        hosting.through("good.1")
        assert why in wanted.status("bad.1")["why"]
        assert wanted.status("good.1")["state"] == "running"
        assert sum(wanted.status("bad.1")["positions"].values()) == 4  # the last committed micro-batch
        good.assert_tables(wanted.tables("good.1"))

        flows = wanted.package / "mill" / "flows.py"
        flows.write_text(flows.read_text().replace("MENDED = False", "MENDED = True"))
        wanted.flows["bad.1"]["attempt"] = 2
        wanted.write()
        bad.append(50)
        good.append(50)
        hosting.until(lambda: wanted.status("bad.1")["state"] == "running")
        hosting.through("good.1", "bad.1")
        good.assert_tables(wanted.tables("good.1"))
        bad.assert_tables(wanted.tables("bad.1"), letters=1)
    finally:
        hosting.close()
        wanted.close()


def test_a_flow_that_takes_its_time_is_not_put_out(spark: SparkSession, wanted: Wanted) -> None:
    slow = wanted.add("slow.1", 1)
    slow.append(0, [SLOW] * 1_000)  # 10 s; no single record takes nearly as long as a busy machine may stall
    wanted.write()
    hosting = Hosting(spark, wanted, hang_s=5.0)
    try:
        hosting.until(lambda: wanted.is_through("slow.1") or wanted.status("slow.1").get("state") == "out")
        # Its first micro-batch is whole before the host has looked at the flow again.
        hosting.until(lambda: wanted.status("slow.1")["state"] != "starting")
        assert wanted.status("slow.1")["state"] == "running"
        slow.assert_tables(wanted.tables("slow.1"))
    finally:
        hosting.close()
        wanted.close()


def test_a_locked_table_holds_its_flow_alone(spark: SparkSession, wanted: Wanted) -> None:
    good, slow = wanted.add("good.1", 1), wanted.add("slow.1", 2)
    good.append(100)
    slow.append(100)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("good.1", "slow.1")
        with closing(sqlite3.connect(wanted.tables("slow.1"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            slow.append(100)
            hosting.until(lambda: wanted.status("slow.1")["state"] == "held")
            # Before a try has failed it says that they do not take rows in time.
            hosting.until(lambda: "is in use by another program" in wanted.status("slow.1")["why"])
            for _ in range(3):
                slow.append(50)
                good.append(50)
                hosting.through("good.1")
            good.assert_tables(wanted.tables("good.1"))
            other.execute("ROLLBACK")
        hosting.until(lambda: wanted.status("slow.1")["state"] == "running")
        hosting.through("good.1", "slow.1")
        slow.assert_tables(wanted.tables("slow.1"))
        good.assert_tables(wanted.tables("good.1"))
    finally:
        hosting.close()
        wanted.close()
