"""A log that release 0.2 has written, made one of this release: what is in it, crashes in the middle, and a
run that goes on with it, with devices that still speak as that release does.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain.errors import LedgerError
from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_client.cli import main
from geartrain_client.rest import door
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.ingest.config import FlowConfig, IngestConfig
from geartrain_cloud.log.migration import migrate_log
from geartrain_cloud.log.opening import shared_log
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.ports import EntryKind
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.spark.compile import compile_queries
from geartrain_cloud.spark.errors import RefusedError
from geartrain_cloud.spark.restore import restored_checkpoint
from geartrain_cloud.spark.shards import SHARDS
from tests.cloud.fleet import running
from tests.control.platform_client import control_process
from tests.spark.faults.flows import LEFT, RIGHT, assert_tables, held_flow
from tests.spark.going_on import read_on
from tests.spark.held_devices import NAMES, TURNS, HeldRun, deliver
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

GOLDEN = Path(__file__).parent / "golden" / "held_0_2.tar.xz"
"""What `held_golden.py` has made."""
FLOW = "tests.spark.faults.flows:flow"
STEPS = ("tables", "flow held", "cursors", "commit")

KILLED = """
import os, signal, sys
from pathlib import Path
from geartrain_cloud.log.migration import migrate_log
from tests.spark.faults.flows import held_flow
from tests.spark.test_migration import stands

def reached(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
migrate_log(folder / "log", [held_flow().graph()], stands(folder), keep=True, reached=reached)
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder of half a run of release 0.2."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def stands(folder: Path) -> dict[str, dict[str, int]]:
    """Where the tables stand, by query."""
    with closing(sqlite3.connect(folder / "tables.sqlite")) as tables:
        return {q: json.loads(held) for q, held in tables.execute("SELECT query, positions FROM _queries")}


def content(folder: Path) -> dict[str, list[Any]]:
    """All rows of all tables of the ledger."""
    with closing(sqlite3.connect(folder / "log" / "ledger.sqlite")) as ledger:
        names = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: ledger.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}


def migrate(folder: Path, *, keep: bool = True) -> None:
    migrate_log(folder / "log", [held_flow().graph()], stands(folder), keep=keep)


def test_a_log_of_release_0_2_is_refused_with_the_way_on(old: Path) -> None:
    with pytest.raises(LedgerError, match=r"is of release 0\.2, .* by gear log migrate$"):
        LogReader(old / "log").positions("held")


def test_the_command_tries_first_and_then_migrates(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(old)
    assert main(["log", "migrate", str(old)]) == 1
    assert "name it with --flow module:name" in capsys.readouterr().err
    assert main(["log", "migrate", str(old), "--flow", FLOW]) == 0
    assert "would become" in (said := capsys.readouterr().out)
    assert "nothing was changed" in said
    assert content(old) == before
    with shared_log(old / "log"):
        assert main(["log", "migrate", str(old), "--flow", FLOW, "--yes"]) == 1
    assert "gear-ingest is running on it" in capsys.readouterr().err
    assert main(["log", "migrate", str(old), "--flow", FLOW, "--yes", "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)["flows"]
    assert done["ends"] == LogReader(old / "log").positions("held")
    assert (done["rows"]["left"], done["rows"]["right"]) == (142, 43)
    assert main(["log", "migrate", str(old), "--flow", FLOW, "--yes"]) == 1
    assert "is of this release already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_platform_that_runs_tries_first_and_then_migrates(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)  # from where control finds the flow
    monkeypatch.setenv(door.STATE, str(old))
    before = content(old)
    with control_process(old) as (_, client):
        tried = client.ask("POST", "/log/migrate", {"flows": [FLOW], "dry_run": True}, expect=200)[1]
        assert content(old) == before
        monkeypatch.chdir(old.parent)  # where no log lies that would be meant
        assert main(["log", "migrate", "--flow", FLOW, "--yes", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (tried["changed"], done["changed"]) == (False, True)
        assert done["flows"] == tried["flows"]
        (flow,) = done["flows"]
        assert flow["ends"] == LogReader(old / "log").positions("held")
        assert (flow["rows"]["left"], flow["rows"]["right"]) == (142, 43)
        assert verify_log(old / "log").damages == []
        assert read_report(PlatformPlaces(old).paused) == {"processes": []}
        again = client.refusal("POST", "/log/migrate", {"flows": [FLOW]})
        assert again[0] == 409
        assert "is of this release already" in again[2]
    store = ControlStore(PlatformPlaces(old).control, lambda: 1)
    assert [one.said for one in store.events.after(0, 100)[0] if one.kind == "log"] == [{"what": "migrated"}]
    store.close()


def test_a_log_that_a_query_has_not_read_to_its_end_is_refused(old: Path) -> None:
    """The ledger itself is one micro-batch behind; the tables know better, where they are asked."""
    before = content(old)
    with pytest.raises(LedgerError, match=r"query keyed@\w+ has come to position 14 of 26 of held/left: let"):
        migrate_log(old / "log", [held_flow().graph()], keep=True)
    assert content(old) == before


@pytest.mark.parametrize("step", STEPS)
def test_killed_in_the_middle_it_is_the_old_log(old: Path, step: str) -> None:
    before = content(old)
    command = [sys.executable, "-c", KILLED, str(old), step]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert content(old) == before
    migrate(old)
    assert verify_log(old / "log").damages == []


def test_entries_keep_their_order_their_rows_and_their_clocks(old: Path) -> None:
    with closing(sqlite3.connect(old / "log" / "ledger.sqlite")) as ledger:
        query = (
            "SELECT channel, partition, device, seq, segment, first_row, count FROM entries "
            "WHERE count > 0 ORDER BY channel, partition, number"
        )
        before = ledger.execute(query).fetchall()
        clocks = dict(ledger.execute("SELECT channel, max(clock) FROM entries GROUP BY channel").fetchall())
        query = "SELECT channel, partition, max(clock) FROM entries GROUP BY channel, partition"
        of_places = ledger.execute(query).fetchall()
    migrate(old)
    reader = LogReader(old / "log")
    ends = reader.positions("held")
    entries = [entry for key, end in ends.items() for entry in reader.entries("held", key, 0, end)]
    rows = [entry for entry in entries if entry.count]
    after = [(e.channel, e.partition, e.device, e.seq, e.segment, e.first_row, e.count) for e in rows]
    assert sorted(after, key=lambda row: row[:2]) == before  # in the order of each channel
    for device in NAMES:
        seqs = [entry.seq for entry in rows if entry.device == device]
        assert seqs == sorted(set(seqs))
    # No row of a channel lies below the clock of its source in the entry before.
    at: dict[tuple[int, str], int] = {}
    for entry in entries:
        if entry.count:
            times: list[Any] = reader.table(entry).column("_event_time").to_pylist()
            assert min(times) >= at.get((entry.partition, entry.channel), START_OF_TIME)
        for source, clock in entry.clocks.items():
            assert clock >= at.get((entry.partition, source), START_OF_TIME)
            at[entry.partition, source] = clock
    # At the end, both sources stand where the query's clock stood: at the least of its channels'.
    least = min(clock for channel, _, clock in of_places if channel in (LEFT, RIGHT))
    assert START_OF_TIME < least < END_OF_TIME
    assert least <= min(clocks[LEFT], clocks[RIGHT])
    assert reader.clocks_at("held", ends) == {LEFT: least, RIGHT: least}
    assigned = {(e.device, e.source) for e in entries if e.kind is EntryKind.ASSIGNED}
    assert assigned == {(device, source) for device in NAMES for source in (LEFT, RIGHT)}
    assert reader.renumbered("held")[1] == ends


def config(folder: Path) -> IngestConfig:
    flow = FlowConfig.of(NAMES, {LEFT: NAMES, RIGHT: NAMES})
    return IngestConfig(flows={"held": flow}, log=folder / "log", partitions=2, group_commit_ms=1)


def go_on(folder: Path) -> HeldRun:
    """The other half of the run: the same devices send on, as release 0.2 does, to an ingest of this one."""
    run = HeldRun()
    run.announced()
    assert len(list(run.turns(TURNS))) == TURNS  # what release 0.2 took

    async def play() -> None:
        async with running(config(folder)) as world:
            for one in run.turns(TURNS):
                await deliver(world, [one])
            for one in run.ends():
                await deliver(world, [one])

    asyncio.run(play())
    return run


def test_the_queries_go_on_and_each_row_is_there_once(spark: SparkSession, old: Path) -> None:
    plan, reader = make_plan(held_flow().graph(), "cloud"), LogReader(old / "log")
    migrate(old)
    run = go_on(old)
    assert set(stands(old)["keyed"]) == {"left", "left/1", "right", "right/1"}
    read_on(spark, plan, old, rows_max=40)
    newest = reader.positions("held")
    assert_tables(old / "tables.sqlite", run.records)
    assert reader.clocks_at("held", newest) == {LEFT: END_OF_TIME, RIGHT: END_OF_TIME}
    assert verify_log(old / "log").damages == []


def test_tables_that_stood_elsewhere_are_refused(old: Path) -> None:
    migrate(old)
    with closing(sqlite3.connect(old / "tables.sqlite")) as database, database:
        held = json.dumps(stands(old)["keyed"] | {"left": 14}, sort_keys=True)
        database.execute("UPDATE _queries SET positions = ? WHERE query = 'keyed'", (held,))
    plan, reader = make_plan(held_flow().graph(), "cloud"), LogReader(old / "log")
    tables = open_tables(plan.graph, old / "tables.sqlite")
    query = next(one for one in compile_queries(plan) if one.name == "keyed")
    folder = old / "driver" / "checkpoints" / "keyed"
    with pytest.raises(RefusedError, match=r"was not the end of the log when it was migrated"):
        restored_checkpoint(query, folder, tables, SHARDS, reader)
    assert [one.name for one in folder.iterdir()] == ["identity.json"]
    tables.close()
