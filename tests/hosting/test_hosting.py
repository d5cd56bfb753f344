"""Flows that come and go in one query on Spark; tables are compared with what plain Python makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.group import GroupSettings
from geartrain_cloud.hosting.group_file import open_group
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted


def test_flows_come_and_go_while_the_query_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    first = wanted.add("stone.1", 0)
    first.append(300)
    wanted.write()
    leave_a_draft(spark, wanted.state)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1")
        second, third = wanted.add("wheel.1", 1), wanted.add("sack.7", 2)
        second.append(200)
        third.append(100, [1013.0])
        first.append(100)
        wanted.write()
        hosting.through("stone.1", "wheel.1", "sack.7")
        del wanted.flows["wheel.1"]
        wanted.write()
        hosting.until(
            lambda: "wheel.1" not in {h.flow for h in hosting.host.groups.shared.version.flows.values()}
        )
        hosting.until(lambda: "wheel.1~1" not in hosting.host.groups.shared._stores)
        second_had = len(rows(wanted.tables("wheel.1"), "each_sum"))
        second.append(50)
        first.append(150)
        third.append(50)
        hosting.through("stone.1", "sack.7")
        first.assert_tables(wanted.tables("stone.1"))
        third.assert_tables(wanted.tables("sack.7"), letters=1)
        assert len(rows(wanted.tables("wheel.1"), "each_sum")) == second_had == len(second.expected(200))
        assert hosting.host.groups.shared.query.is_active
        assert hosting.host.groups.shared.query.restarts == []
        assert "mill" not in sys.modules  # the driver imports no user code
        hosting.close()
        lose_the_last_commit(wanted.state)
        first.append(70)
        third.append(30)
        hosting = Hosting(spark, wanted)
        hosting.through("stone.1", "sack.7")
        stores = [hosting.host.groups.shared.store(name) for name in ("stone.1~1", "sack.7~1")]
        assert sum(store.repeated for store in stores if store is not None) >= 1
        first.assert_tables(wanted.tables("stone.1"))
        third.assert_tables(wanted.tables("sack.7"), letters=1)
    finally:
        hosting.close()
        wanted.close()


def leave_a_draft(spark: SparkSession, state: Path) -> None:
    """As after a kill while Spark wrote the offsets of its first micro-batch."""
    places = HostPlaces(state).group("all")
    places.folder.mkdir(parents=True)
    partitions = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    _, checkpoint = open_group(places, "all", GroupSettings().stages, partitions)
    offsets = checkpoint.location / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.13ad3fa4.tmp").touch()


def lose_the_last_commit(state: Path, group: str = "all") -> None:
    """As after a kill between the commits of tables and Spark: the last micro-batch is run again. One that
    was under way when the host was closed has not begun then.
    """
    spark = state / "groups" / group / "spark"
    newest = max(int(p.name) for p in (spark / "commits").iterdir() if p.name.isdecimal())
    for folder, number in (("commits", newest), ("offsets", newest + 1)):
        for name in (f"{number}", f".{number}.crc"):
            (spark / folder / name).unlink(missing_ok=True)
