"""Tables that another program writes just when the host opens them, and budgets that are changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.test_hosting import lose_the_last_commit


def test_a_flow_waits_for_tables_that_are_locked_when_it_comes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add("stone.1", 0)
    log.append(300)
    wanted.write()
    path = wanted.tables("stone.1")
    path.parent.mkdir(parents=True)
    hosting = Hosting(spark, wanted)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA journal_mode = WAL")
            other.execute("BEGIN IMMEDIATE")
            hosting.until(lambda: "in use" in wanted.status("stone.1").get("why", ""))
            assert wanted.status("stone.1")["state"] == "starting"
            other.execute("ROLLBACK")
        hosting.through("stone.1")
        log.assert_tables(path)
        hosting.close()
        lose_the_last_commit(wanted.state)  # the tables hold a micro-batch that Spark has not committed
        log.append(100)
        wanted.add("stone.1", 0, rows_max=70)
        wanted.write()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            hosting = Hosting(spark, wanted)
            hosting.until(lambda: wanted.status("stone.1")["state"] == "held")
            assert "in use" in wanted.status("stone.1")["why"]
            other.execute("ROLLBACK")
        hosting.through("stone.1")
        log.assert_tables(path)
        hosted = hosting.host.groups.shared.version.of_flow("stone.1")
        assert hosted is not None
        assert (hosted.generation, hosted.rows_max) == (2, 70)
    finally:
        hosting.close()
        wanted.close()


def test_tables_that_are_no_file_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    wanted.add("stone.1", 0, tables="postgresql://host/fleet")
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        while not hosting.host._failed:
            hosting.host.step()
        hosting.host.show()
        said = wanted.status("stone.1")
        assert said["state"] == "failed"
        assert "name an SQLite file by its whole path" in said["why"]
        assert not list(Path.cwd().glob("postgresql*"))
    finally:
        hosting.close()
        wanted.close()
