"""A flow that is run again from the beginning of its log; tables are compared with plain Python."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting import host as host_module
from geartrain_cloud.hosting.groups import Groups
from geartrain_cloud.hosting.host import Host
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.log.housekeeping import forget_rows
from geartrain_cloud.log.opening import writable_ledger
from geartrain_cloud.platform.runs import runs_with_tables, served_run, tables_of_run
from geartrain_cloud.sinks import app_tables
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.parquet_form import read_table
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted


class KillError(Exception):
    """The host ends here."""


def end_here(*arguments: Any) -> None:
    raise KillError


LAKE = """
from geartrain import Flow, Table
from geartrain.sinks import DeltaTable, ParquetTable
from geartrain.testing import TestingSource
from mill.flows import FACTORS, Above, Adding, Reading

flow = Flow("lake")
readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
kept = readings.filter(Above(0), name="above")
kept.sink("kept", Table("kept"))
sums = kept.key_by("sensor", name="by_sensor").process("adding", Adding(FACTORS[0]))
sums.sink("each", Table("each_sum"))
sums.sink("last", Table("last_sum", key=("sensor",)))
sums.sink("lake", ParquetTable("lake"))
sums.sink("delta", DeltaTable("sums"))
"""


REVISIONS = """
from geartrain import Flow, Table
from geartrain.sinks import ParquetTable
from geartrain.testing import TestingSource
from mill.flows import Reading


def make(with_lake):
    flow = Flow("lakes")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    readings.sink("kept", Table("kept"))
    if with_lake:
        readings.sink("lake", ParquetTable("lake"))
    return flow


plain, lake = make(False), make(True)
"""


def amid(*arguments: Any) -> None:
    """A folder is half removed as the host ends."""
    next(arguments[0].glob("*.parquet")).unlink()
    raise KillError


def flows_of(hosting: Hosting) -> set[tuple[str, int]]:
    return {(one.flow, one.run) for one in hosting.host.groups.shared.version.flows.values()}


@pytest.mark.proof
def test_a_replay_takes_the_place_of_the_former_run_once_it_has_caught_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log, beside = wanted.add("stone.1", 0, rows_max=100), wanted.add("wheel.1", 1)
    log.append(400)
    beside.append(100)
    wanted.write()
    first = wanted.tables("stone.1")
    second = tables_of_run(first, 2)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1", "wheel.1")
        with closing(sqlite3.connect(first)) as database, database:
            database.execute("DELETE FROM kept")  # what the first run holds is wrong from now on
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()
        with monkeypatch.context() as before_the_swap:
            before_the_swap.setattr(host_module, "serve_run", end_here)
            with pytest.raises(KillError):
                hosting.until(lambda: False)
        assert "run 2 is" in wanted.status("stone.1")["why"]
        assert (wanted.status("stone.1")["run"], served_run(first)) == (1, 1)
        hosting.close()
        log.append(150)
        beside.append(50)
        with monkeypatch.context() as after_the_swap:
            hosting = Hosting(spark, wanted)
            assert flows_of(hosting) == {("stone.1", 1), ("stone.1", 2), ("wheel.1", 1)}
            swapped = Host._swap

            def swap(host: Host) -> None:
                swapped(host)
                if served_run(first) == 2:
                    raise KillError

            after_the_swap.setattr(Host, "_swap", swap)
            with pytest.raises(KillError):
                hosting.until(lambda: False)
        hosting.close()
        log.append(70)
        hosting = Hosting(spark, wanted)
        assert flows_of(hosting) == {("stone.1", 1), ("stone.1", 2), ("wheel.1", 1)}
        hosting.until(lambda: wanted.status("stone.1").get("run") == 2)
        hosting.through("stone.1", "wheel.1")
        log.assert_tables(second)
        beside.assert_tables(wanted.tables("wheel.1"))
        hosting.until(lambda: not first.exists())
        assert flows_of(hosting) == {("stone.1", 2), ("wheel.1", 1)}
        log.append(30)
        hosting.through("stone.1")
        log.assert_tables(second)
        said = wanted.status("stone.1")
        assert (said["state"], said["run"], said["why"]) == ("running", 2, "")
    finally:
        hosting.close()
        wanted.close()


@pytest.mark.proof
def test_flows_that_are_replayed_after_a_purge_leave_the_query_that_they_shared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    names = "stone.1", "wheel.1"
    logs = [wanted.add(name, number, rows_max=100) for number, name in enumerate(names)]
    for log in logs:
        log.append(200)
    wanted.write()
    places = HostPlaces(wanted.state)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(*names)
        hosting.close()
        places.share_anew()
        for name in names:
            wanted.flows[name]["run"] = 2
        wanted.write()
        for what, name in ((host_module, "serve_run"), (Groups, "_remove_former")):
            with monkeypatch.context() as ending:
                ending.setattr(what, name, end_here)
                hosting = Hosting(spark, wanted)
                assert [one.name for one in hosting.host.groups] == ["all~2", "all"]
                with pytest.raises(KillError):
                    hosting.until(lambda: False)
            hosting.close()
        assert places.shared() == ["all", "all~2"]
        hosting = Hosting(spark, wanted)
        assert places.shared() == ["all~2"]
        for log in logs:
            log.append(50)
        hosting.through(*names)
        for name, log in zip(names, logs, strict=True):
            log.assert_tables(tables_of_run(wanted.tables(name), 2))
        assert flows_of(hosting) == {(name, 2) for name in names}
        assert [path.name for path in places.groups.iterdir()] == ["all~2"]
    finally:
        hosting.close()
        wanted.close()


@pytest.mark.proof
def test_files_beside_the_tables_are_made_anew_and_the_former_ones_go_whatever_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    (wanted.package / "mill" / "lake.py").write_text(LAKE)
    log = wanted.add("stone.1", 0, flow="mill.lake:flow")
    log.append(300)
    wanted.write()
    app = AppTables(wanted.tables("stone.1"))
    parent, names = app.first.parent, ["lake.parquet", "sums.delta"]

    def assert_files(run: int) -> None:
        assert app.folders() == [(parent if run == 1 else parent / f"run-{run}") / name for name in names]
        lake, delta = app.folders()
        for table in (read_table(lake), deltalake.DeltaTable(str(delta)).to_pyarrow_table()):
            held = [(row["sensor"], row["count"], row["total"]) for row in table.to_pylist()]
            assert sorted(held) == sorted(log.expected())

    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1")
        assert_files(1)
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()
        for what, name, how in (
            (host_module, "serve_run", end_here),
            (shutil, "rmtree", end_here),
            (shutil, "rmtree", amid),
            (app_tables, "fsync_path", end_here),
        ):
            with monkeypatch.context() as ending:
                ending.setattr(what, name, how)
                with pytest.raises(KillError):
                    hosting.until(lambda: False)
            hosting.close()
            assert runs_with_tables(app.first) == {1, 2}
            log.append(20)
            hosting = Hosting(spark, wanted)
        hosting.until(lambda: runs_with_tables(app.first) == {2})
        hosting.through("stone.1")
        log.assert_tables(tables_of_run(app.first, 2))
        assert_files(2)
        assert [path.name for path in parent.iterdir() if path.is_dir()] == ["run-2"]
    finally:
        hosting.close()
        wanted.close()


@pytest.mark.proof
def test_files_that_came_with_a_revision_come_with_it_in_a_replay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    (wanted.package / "mill" / "lakes.py").write_text(REVISIONS)
    log = wanted.add("stone.1", 0, flow="mill.lakes:plain", drops=[], follows=0)
    log.append(100)
    wanted.write()
    app = AppTables(wanted.tables("stone.1"))

    def assert_rows() -> None:
        kept = [(reading.sensor, reading.value) for reading, *_ in log.records]
        (lake,) = app.folders()
        held = read_table(lake)
        assert sorted(zip(*(held[name].to_pylist() for name in ("sensor", "value")), strict=True)) == sorted(
            kept[100:]
        )
        found = rows(tables_of_run(app.first, app.served), "kept", canonical=True)
        assert [tuple(row.values()) for row in found] == kept

    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1")
        assert app.folders() == []
        flow = wanted.flows["stone.1"]
        former = {name: flow[name] for name in ("flow", "cut", "drops", "follows")}
        flow |= {"flow": "mill.lakes:lake", "revision": 2, "former": [former]}
        wanted.write()
        hosting.until(lambda: wanted.status("stone.1")["prepared"] == 2)
        log.writer.revise(2)
        log.append(50)
        hosting.through("stone.1")
        assert_rows()
        flow["run"] = 2
        wanted.write()
        hosting.until(lambda: runs_with_tables(app.first) == {2})
        assert app.folders() == [app.first.parent / "run-2" / "lake.parquet"]
        assert_rows()
        log.append(30)
        hosting.through("stone.1")
        assert_rows()
    finally:
        hosting.close()
        wanted.close()


def test_a_flow_that_is_replayed_at_its_end_has_finished_when_the_former_run_is_gone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add("stone.1", 0)
    log.append(300)
    log.writer.end()
    wanted.write()
    first = wanted.tables("stone.1")
    hosting = Hosting(spark, wanted)
    try:
        hosting.until(lambda: wanted.status("stone.1").get("state") == "finished")
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()
        hosting.until(lambda: (said := wanted.status("stone.1"))["run"] == 2 and said["state"] == "finished")
        assert runs_with_tables(first) == {2}
        assert flows_of(hosting) == {("stone.1", 2)}
        log.assert_tables(tables_of_run(first, 2))
    finally:
        hosting.close()
        wanted.close()


def test_a_replay_of_a_flow_that_had_finished_is_made_without_the_former_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add("stone.1", 0)
    log.append(300)
    log.writer.end()
    wanted.write()
    first = wanted.tables("stone.1")
    hosting = Hosting(spark, wanted)
    try:
        hosting.until(lambda: wanted.status("stone.1").get("state") == "finished")
        asked = wanted.flows.pop("stone.1")
        wanted.write()
        hosting.until(lambda: not hosting.host.groups.shared._stores)  # the host has let go of it
        with closing(sqlite3.connect(first)) as database, database:
            database.execute("DELETE FROM kept")
        wanted.flows["stone.1"] = asked | {"run": 2, "end": "ended"}
        wanted.write()
        seen = set[tuple[str, str]]()

        def is_caught_up() -> bool:
            said = wanted.status("stone.1")
            seen.add((str(said.get("run")), str(said.get("state"))))
            return hosting.host.groups.has_caught_up("stone.1", 2, 1)

        with monkeypatch.context() as before_the_swap:
            before_the_swap.setattr(Host, "_swap", lambda host: None)
            hosting.until(is_caught_up)
            hosting.until(lambda: wanted.status("stone.1")["lag"] == 0)
        assert first.exists()
        assert seen <= {("None", "None"), ("1", "starting"), ("1", "running")}
        assert (served_run(first), flows_of(hosting)) == (1, {("stone.1", 2)})
        hosting.close()
        hosting = Hosting(spark, wanted)  # it was killed before the swap
        hosting.until(lambda: wanted.status("stone.1").get("run") == 2)
        hosting.until(lambda: wanted.status("stone.1").get("state") == "finished")
        assert not first.exists()
        log.assert_tables(tables_of_run(first, 2))
    finally:
        hosting.close()
        wanted.close()


def test_a_replay_is_refused_where_retention_has_removed_the_logs_beginning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add("stone.1", 0)
    log.append(200)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1")
        with writable_ledger(wanted.log) as ledger:
            name = ledger.execute("SELECT segment FROM entries WHERE segment != '' LIMIT 1").fetchone()[0]
            forget_rows(ledger, name, time.time_ns() // 1_000)
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()
        while not hosting.host._failed:
            hosting.host.step()
        hosting.host.show()
        said = wanted.status("stone.1")
        assert (said["state"], said["run"]) == ("running", 1)
        assert "run 2 of stone.1 cannot begin: retention has removed the beginning of its log" in said["why"]
        assert flows_of(hosting) == {("stone.1", 1)}
        log.append(100)
        wanted.flows["stone.1"]["run"] = 1
        wanted.write()
        hosting.through("stone.1")
        log.assert_tables(wanted.tables("stone.1"))
    finally:
        hosting.close()
        wanted.close()
