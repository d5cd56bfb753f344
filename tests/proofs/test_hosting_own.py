"""Flows with a query of their own beside those that share one; tables are compared with plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.log.queries import registered
from geartrain_cloud.platform.runs import tables_of_run
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import DEEP, HANG, RAISE
from tests.hosting.test_hosting import lose_the_last_commit

pytestmark = pytest.mark.slow


def queries(hosting: Hosting) -> dict[str, str]:
    """The groups, and the id of each one's query, which a start again would change."""
    handles = {group.name: group.query._handle for group in hosting.host.groups}
    return {name: str(handle.runId) for name, handle in handles.items() if handle is not None}


def folders(wanted: Wanted) -> set[str]:
    return {path.name for path in (wanted.state / "groups").iterdir()}


def kept_for(wanted: Wanted) -> set[str]:
    """The flows of which queries keep the log."""
    return {one.flow for one in registered(wanted.log)}


def test_a_flow_runs_in_a_query_of_its_own_beside_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    shared, deep = wanted.add("stone.1", 0), wanted.add("deep.1", DEEP)
    shared.append(200)
    deep.append(200)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1", "deep.1")
        before = queries(hosting)
        assert before.keys() == {"all", "own-deep.1"}  # three shuffles are more than the others' query has
        deep.append(50, [RAISE])
        deep.append(50)
        for _ in range(3):
            shared.append(50)
            hosting.through("stone.1")
        hosting.until(lambda: wanted.status("deep.1")["state"] == "out")
        assert "CannotGoOn: this flow raises" in wanted.status("deep.1")["why"]
        flows = wanted.package / "mill" / "flows.py"
        flows.write_text(flows.read_text().replace("MENDED = False", "MENDED = True"))
        wanted.flows["deep.1"]["attempt"] = 2
        wanted.write()
        hosting.through("deep.1")
        deep.append(50)
        hosting.through("deep.1")
        deep.assert_tables(wanted.tables("deep.1"), letters=1)
        assert queries(hosting)["all"] == before["all"]
        assert queries(hosting)["own-deep.1"] != before["own-deep.1"]

        hosting.close()
        lose_the_last_commit(wanted.state, "own-deep.1")
        shared.append(70)
        deep.append(70)
        hosting = Hosting(spark, wanted)
        hosting.through("stone.1", "deep.1")
        shared.assert_tables(wanted.tables("stone.1"))
        deep.assert_tables(wanted.tables("deep.1"), letters=1)
        wanted.flows["deep.1"]["run"] = 2
        wanted.write()
        hosting.until(lambda: wanted.status("deep.1").get("run") == 2)
        deep.assert_tables(tables_of_run(wanted.tables("deep.1"), 2), letters=1)
        hosting.until(lambda: folders(wanted) == {"all", "own-deep.1~2"})
        del wanted.flows["deep.1"]
        wanted.write()
        hosting.until(lambda: folders(wanted) == {"all"})
        hosting.until(lambda: kept_for(wanted) == {"stone.1"})
    finally:
        hosting.close()
        wanted.close()


def test_a_flow_that_hangs_in_its_own_query_holds_up_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    good, bad = wanted.add("good.1", 0), wanted.add("bad.1", 4, isolation="own")
    good.append(100)
    bad.append(100)
    wanted.write()
    hosting = Hosting(spark, wanted, hang_s=600.0)
    try:
        hosting.through("good.1", "bad.1")
        before = queries(hosting)
        bad.append(10, [HANG] * 20)  # in both of its tasks
        for _ in range(3):
            good.append(50)
            hosting.through("good.1")
        assert queries(hosting) == before
        assert wanted.status("bad.1")["state"] == "running"
        del wanted.flows["bad.1"]
        wanted.write()
        hosting.until(lambda: folders(wanted) == {"all"})
        good.append(50)
        hosting.through("good.1")
        assert queries(hosting) == {"all": before["all"]}
        good.assert_tables(wanted.tables("good.1"))
        assert kept_for(wanted) == {"good.1"}
    finally:
        hosting.close()
        wanted.close()
