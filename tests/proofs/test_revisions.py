"""A flow that goes through three revisions while its host is started again, a replay of it, and a revision
that cannot come into force.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.platform.runs import tables_of_run
from tests.hosting.hosted import Hosting
from tests.hosting.test_revisions import APP, River


def test_a_flow_goes_through_revisions_over_restarts_and_so_does_its_replay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    river = River(tmp_path, monkeypatch)
    wanted, log = river.wanted, river.log
    river.want("one")
    river.begin()
    log.append(300)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        river.want("two")
        hosting.until(lambda: wanted.status(APP)["prepared"] == 2)
        assert wanted.status(APP)["revision"] == 1
        log.append(70)  # what comes before the revision is of the one before, also in one micro-batch
        river.begin()
        log.append(1_000)
        hosting.through(APP)
        assert wanted.status(APP)["revision"] == 2
        river.want("three")
        river.begin()
        log.append(300)
        hosting.close()  # before anything of it was prepared
        hosting = Hosting(spark, wanted)
        hosting.until(lambda: wanted.status(APP).get("revision") == 3)
        hosting.close()  # with the first micro-batch of the revision perhaps under way
        hosting = Hosting(spark, wanted)
        log.append(50)
        hosting.through(APP)
        log.writer.end()
        hosting.through(APP)
        river.assert_tables(wanted.tables(APP))

        wanted.flows[APP] |= {"run": 2}  # a replay goes the same way
        wanted.write()
        hosting.until(lambda: wanted.status(APP)["run"] == 2)
        river.assert_tables(tables_of_run(wanted.tables(APP), 2))
    finally:
        hosting.close()
        wanted.close()


def test_a_revision_that_never_comes_into_force_is_passed_over_and_a_drain_ends_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    river = River(tmp_path, monkeypatch)
    wanted, log = river.wanted, river.log
    river.want("one")
    river.begin()
    log.append(100)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        river.want("none_such")
        river.begin()  # its code was good when control asked, and is not any more
        log.append(70)
        hosting.until(lambda: wanted.status(APP).get("stuck") == 2)
        said = wanted.status(APP)
        assert (said["state"], said["revision"]) == ("running", 1)
        assert said["lag"] > 0
        wanted.flows[APP] |= {"end": "drain"}
        wanted.write()
        hosting.until(lambda: wanted.status(APP)["state"] == "finished")
        why = wanted.status(APP)["why"]
        assert "entries of the log are in no table, since they stand behind a revision" in why
        assert "none_such" in why
        wanted.flows[APP] |= {"end": ""}
        river.want("two", follows=1)
        hosting.until(lambda: wanted.status(APP)["prepared"] == 3)
        log.append(60)
        log.writer.revise(3)
        log.append(200)
        hosting.through(APP)
        said = wanted.status(APP)
        assert (said["revision"], said["stuck"], said["why"]) == (3, 0, "")
        log.writer.end()
        hosting.through(APP)
        river.assert_tables(wanted.tables(APP))  # all behind the second boundary is of the third revision
    finally:
        hosting.close()
        wanted.close()
