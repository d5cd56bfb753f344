"""Purges of devices in the control store: what begins with one, and what a device hears of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from geartrain import Flow, Table
from geartrain.adapters.system import SystemClock
from geartrain.control.codec import encode_reported
from geartrain.control.states import Reported
from geartrain.planning import make_plan
from geartrain.revision import revision_of
from geartrain.schema import ColumnBatch, derive
from geartrain.sinks import DeltaTable, ParquetTable
from geartrain.testing import TestingSource
from geartrain_client.cli import main
from geartrain_cloud.control.checking import outline_of
from geartrain_cloud.control.pausing import Pauses
from geartrain_cloud.control.purging import Purging, other_sinks
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.devices import HEARS_US
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import (
    Channel,
    Mode,
    Outline,
    Planned,
    Report,
    SourceOutline,
    State,
    Submission,
)
from geartrain_cloud.control_store.purges import Purge
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import StateError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.versions import Version, Versions
from geartrain_cloud.hosting.wanted import Isolation
from geartrain_cloud.ingest.erasure import erasable
from geartrain_cloud.log.opening import stopped_log
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.held_files import held_files
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.rest.audit import AuditLog
from geartrain_cloud.sinks.parquet import ParquetTables
from tests.cloud.fleet import FLOW, TestDevice
from tests.cloud.test_state_commands import play
from tests.control.platform_client import control_process
from tests.hosting.test_group import version
from tests.spark.flows import Reading
from tests.supervisor.test_up import until

OUTLINE = Outline("heat", [Channel("readings", ["readings"])], [SourceOutline("readings", True)], "aa")
VALUE = "the-secret-of-t1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    one = ControlStore(tmp_path / "control.sqlite", lambda: 1_000)
    for name in ("t1", "t2"):
        one.devices.add(name, {})
    one.apps.submit(Submission("heat", "heat:flow", "auto", "all"), OUTLINE)
    yield one
    one.close()


def purge(device: str) -> Purge:
    return Purge(device, "stopping", 1_000, 0, "ann", {"heat.1": 0}, (), 3, 1, "")


def say(store: ControlStore, device: str, why: str = "") -> None:
    """The device reports what it has applied."""
    serial = store.devices.get(device).serial
    report = Report(device, "heat.1", "running", why)
    said = msgspec.structs.replace(Reported(device, bytes(8), 1, 1, serial, bytes(16), ()), why=why)
    store.reports.heard(device, encode_reported(said), serial, [report])


def test_a_purge_retires_its_device_which_hears_of_it_and_comes_back_only_then(store: ControlStore) -> None:
    store.purges.begin(purge("t1"))
    assert store.devices.get("t1").retired
    assert store.desired.purged_on("t1") == ["heat.1"]
    assert not store.desired.wanted_on("t1")
    assert store.devices.is_to_hear("t1", 2_000)
    assert not store.devices.is_to_hear("t1", 2_000 + HEARS_US)
    with pytest.raises(ConflictError, match="device t1 has not said that it removed"):
        store.devices.add("t1", {})
    say(store, "t1")
    assert not store.desired.still_holds("t1")
    assert not store.devices.is_to_hear("t1", 2_000)
    store.devices.add("t1", {})
    assert (store.desired.purged_on("t1"), len(store.desired.wanted_on("t1"))) == ([], 1)


def test_one_purge_is_under_way_at_a_time_and_a_failed_one_may_be_begun_again(store: ControlStore) -> None:
    store.purges.begin(purge("t1"))
    with pytest.raises(ConflictError, match="what device t1 sent is being erased: wait"):
        store.purges.begin(purge("t2"))
    assert not store.devices.get("t2").retired
    store.purges.enter("t1", "failed", done_us=5, why="a segment is damaged")
    assert store.purges.under_way() is None
    store.purges.begin(purge("t1"))
    store.purges.replays("t1", {"heat.1": 2})
    found = store.purges.under_way()
    assert found is not None
    assert (found.step, found.runs, found.why) == ("replaying", {"heat.1": 2}, "")
    store.purges.enter("t1", "done", done_us=9)
    kinds = [
        (one.kind, one.device, one.said["step"])
        for one in store.events.after(0, 100)[0]
        if one.kind == "purge"
    ]
    assert kinds == [
        ("purge", "t1", step) for step in ("stopping", "failed", "stopping", "replaying", "done")
    ]


def test_no_byte_of_what_a_device_has_said_stays_in_the_store(store: ControlStore, tmp_path: Path) -> None:
    say(store, "t1", f"the sensor said {VALUE}")
    say(store, "t2", "the sensor said nothing")
    path = tmp_path / "control.sqlite"
    store.purges.begin(purge("t1"))
    held = [one for one in tmp_path.iterdir() if VALUE.encode() in one.read_bytes()]
    assert held
    store.purges.forget_said("t1", [])
    store.database.compact()
    assert not [one for one in tmp_path.iterdir() if VALUE.encode() in one.read_bytes()]
    assert set(store.reports.of("heat.1")) == {"t2"}
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_tokens_that_are_made_and_revoked_are_told_of_without_their_secrets(store: ControlStore) -> None:
    _, token = store.bearers.add(Bearer("ci", "operator", made_by="ann"), 60)
    store.bearers.revoke("ci")
    found = [one.said for one in store.events.after(0, 100)[0] if one.kind == "token"]
    assert [(one["name"], one["role"], one["made_by"], one["removed"]) for one in found] == [
        ("ci", "operator", "ann", False),
        ("ci", "operator", "ann", True),
    ]
    assert token not in str(found)


def test_processes_that_start_die_and_come_back_are_told_of_once(store: ControlStore) -> None:
    def up(pid: int | None, state: str, restarts: int) -> dict[str, dict[str, object]]:
        return {"ingest": {"pid": pid, "state": state, "restarts": restarts, "why": VALUE}}

    for one in (up(7, "running", 0), up(7, "running", 0), up(None, "waiting", 1), up(9, "running", 1)):
        store.events.look({}, one)
        store.events.look({}, one)
    found = [one.said for one in store.events.after(0, 100)[0] if one.kind == "process"]
    assert [(one["process"], one["state"], one["restarts"]) for one in found] == [
        ("ingest", "running", 0),
        ("ingest", "waiting", 1),
        ("ingest", "running", 1),
    ]
    assert VALUE not in str(found)


DEVICE = TestDevice().name


@pytest.fixture
def places(tmp_path: Path) -> PlatformPlaces:
    """A platform with a log of one device, whose app was killed."""
    found = PlatformPlaces(tmp_path)
    play(found.log, lambda d: d.quotes(1.0, 2.0), lambda d: d.quotes(3.0))
    store = ControlStore(found.control, lambda: 1_000)
    store.devices.add(DEVICE, {})
    store.apps.submit(Submission("quotes", "stocks:flow", "auto", "all"), OUTLINE)
    store.close()
    with sqlite3.connect(found.control) as database:
        for table in ("apps", "instances", "assignments"):
            database.execute(f"UPDATE {table} SET instance = ?", (FLOW,))
        database.execute("UPDATE instances SET wanted = 'killed', state = 'ended'")
    return found


@pytest.mark.slow
def test_a_purge_that_cannot_be_whole_does_not_begin_and_one_waits_until_ingest_has_ended(
    places: PlatformPlaces,
) -> None:
    path, unnamed = f"/devices/{DEVICE}/purge", places.histories / f"{'0' * 64}.csv"
    unnamed.parent.mkdir()
    unnamed.write_text(VALUE)
    with sqlite3.connect(places.control) as database:
        history = {DEVICE: {"readings": {"history": {"files": ["history.csv"], "time": "time"}}}}
        database.execute("UPDATE instances SET device_options = ?", (json.dumps(history),))
    with (
        control_process(places.folder) as (_, client),
        stopped_log(places.log),  # as ingest holds it
    ):
        status, code, said = client.refusal("POST", path, {})
        assert (status, code) == (409, "conflict")
        assert "app quotes was killed, so it has no replay" in said
        assert f"app quotes was given history of {DEVICE}" in said
        planned = client.ask("POST", path, {"dry_run": True}, expect=200)[1]
        assert (planned["step"], planned["rows"], len(planned["obstacles"])) == ("planned", 3, 2)
        assert client.refusal("POST", "/devices/nobody/purge", {})[0] == 404
        with held_files(places.folder, StateError):  # as a backup holds it
            said = client.refusal("POST", path, {"leave": ["quotes"]})[2]
            assert said == "a backup is being made, which would hold what is to be erased: wait for it to end"
        assert not client.get(f"/devices/{DEVICE}")["retired"]
        made = client.ask("POST", path, {"leave": ["quotes"]}, expect=202)[1]
        assert (made["step"], made["leaves"], made["asked_by"]) == ("stopping", [FLOW], "local")
        paused = ["ingest", "spark"]
        until(lambda: read_report(places.paused).get("processes") == paused, "the pause")
        assert client.refusal("POST", path, {"leave": ["quotes"]})[0] == 409
        with held_files(places.folder, StateError):
            until(lambda: read_report(places.paused).get("processes") == [], "ingest and Spark, let go on")
            assert "a backup is being made" in client.get(path)["waits_for"][0]
        assert erasable(places.log, DEVICE).rows == 3
    with control_process(places.folder) as (_, client):
        until(lambda: client.get(path)["step"] == "done", "the purge, by another control")
        assert erasable(places.log, DEVICE).rows == 0
        assert not unnamed.exists()
        assert read_report(places.paused) == {"processes": []}
        assert any("the disk of" in one for one in client.get(path)["not_reached"])


def lake_flow(folder: str = "", *, without: bool = False) -> Outline:
    """What control knows of a flow with a Parquet and a Delta table; without: it has them no more."""
    flow = Flow("lake")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    readings.sink("kept", Table("kept"))
    if not without:
        readings.sink("lake", ParquetTable("lake", folder=folder))
        readings.sink("delta", DeltaTable("delta"))
    plan = make_plan(flow.graph(), "auto")
    return outline_of(plan, revision_of("lake:flow", plan))


def test_tables_in_files_are_no_obstacle_unless_a_revision_has_them_in_a_folder_that_it_names(
    store: ControlStore,
) -> None:
    app = store.apps.newest("heat")

    def revision(outline: Outline) -> Planned:
        return Planned("heat.1", 1, "lake:flow", "cloud", {}, {}, outline, (), 1)

    assert other_sinks([app, revision(lake_flow())]) == []
    assert lake_flow().anew == ("lake", "delta")
    named = revision(lake_flow("/srv/plant"))
    assert other_sinks([named]) == other_sinks([named, named]) == [("lake", "ParquetTable")]
    assert other_sinks([named, revision(lake_flow(without=True))]) == [("lake", "ParquetTable")]


def test_an_app_with_parquet_files_elsewhere_is_named_and_those_beside_it_go_whole_with_it(
    places: PlatformPlaces,
) -> None:
    config, clock = PlatformConfig(places.folder), SystemClock()
    store = ControlStore(places.control, clock.now_us)
    app = store.apps.submit(Submission("lake", "lake:flow", "auto", "all"), lake_flow("/srv/plant"))
    folder = places.app(app.instance)
    tables = ParquetTables(folder)
    tables.declare("lake", ParquetTable("lake"), derive(Reading))
    tables.attach("q", "c", has_run=False)
    row = ColumnBatch([[VALUE], [1.0]], [0], ["a"], [0])
    tables.write("q", 0, {"0": 1}, {"lake": [row]})
    tables.close()

    def held() -> list[Any]:
        files = places.folder.rglob("*.parquet")
        return [one for path in files if path.is_file() for one in pq.read_table(path)["sensor"].to_pylist()]

    assert held() == [VALUE]
    purging = Purging(store, config, clock, lambda: None, Pauses(places, clock))
    assert list(purging._against(app, DEVICE)) == [
        "app lake writes to lake by ParquetTable, which a replay does not write anew"
    ]
    store.apps.kill("lake", Mode.NOW, purge=True)
    reconciler = Reconciler(store, config, clock.now_us)
    for _ in range(5):
        reconciler.round()
    assert held() == []
    assert not folder.exists()
    store.close()


def test_all_apps_of_a_shared_query_that_can_leave_it_and_the_purge_waits_until_it_has_gone(
    places: PlatformPlaces,
) -> None:
    config, clock, host = PlatformConfig(places.folder), SystemClock(), HostPlaces(places.spark)
    store = ControlStore(places.control, clock.now_us)
    names = ["heat", "beside", "sends", "alone"]
    for name in names:
        outline = msgspec.structs.replace(OUTLINE, flow=name, down=name == "sends")
        isolation: Isolation = "own" if name == "alone" else "shared"
        store.apps.submit(Submission(name, f"{name}:flow", "auto", "all", isolation=isolation), outline)
        store.apps.enter(f"{name}.1", State.RUNNING)
    heat, alone = store.apps.newest("heat"), store.apps.newest("alone")

    def has(group: str, *flows: str) -> None:
        (hosted,) = version(1).flows.values()
        found = {f"{one}.1~1": msgspec.structs.replace(hosted, flow=f"{one}.1") for one in flows}
        Versions(host.group(group).versions).publish(Version(1, 2, found))

    has("all", "heat", "beside", "sends")
    has("own-alone.1", "alone")
    purging = Purging(store, config, clock, lambda: None, Pauses(places, clock))
    assert [one.instance for one in purging._beside([heat])] == ["beside.1"]
    assert list(purging._beside([alone])) == []
    planned = msgspec.structs.replace(purge(DEVICE), runs={"heat.1": 0, "beside.1": 0})
    stays = "Spark's checkpoint of the query that apps shared before, as long as it has sends.1"
    assert stays in purging._told(planned)["not_reached"]
    assert stays not in purging._told(msgspec.structs.replace(planned, runs={"alone.1": 0}))["not_reached"]
    host.share_anew()
    replaying = msgspec.structs.replace(planned, step="replaying", runs={"heat.1": 1, "beside.1": 1})
    assert stays in purging._told(replaying)["not_reached"]
    assert purging._waits_for(replaying) == []  # the app that sends has it, perhaps for years
    gone = "the query that apps shared before has still to go, with what it keeps"
    for flows in (("heat",), ()):
        has("all", *flows)
        purging = Purging(store, config, clock, lambda: None, Pauses(places, clock))
        assert purging._waits_for(replaying) == [gone]
        assert stays not in purging._told(replaying)["not_reached"]
    shutil.rmtree(host.group("all").folder)
    assert purging._waits_for(replaying) == []
    store.close()


@pytest.mark.slow
def test_what_is_erased_of_a_stopped_platform_is_in_its_audit_log(places: PlatformPlaces) -> None:
    assert main(["log", "erase", DEVICE, "--state", str(places.folder)]) == 0
    assert not places.audit.exists()
    assert main(["log", "erase", DEVICE, "--state", str(places.folder), "--yes"]) == 0
    audit = AuditLog(places.audit, lambda: 1_000)
    ((entry,), _) = audit.page(10, 1 << 62, 0)
    audit.close()
    assert (entry["path"], entry["device"], entry["token"], entry["result"]) == (
        *("gear log erase", DEVICE, "local", "ok"),
    )
