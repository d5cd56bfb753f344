"""Backups of a state folder: consistent, whole or nothing under kills at each step, checked on the way back.

The platform here is a folder with real stores and a checkpoint that a thread writes as Spark does.
`tests/proofs/test_backup.py` has a real one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.adapters.files import write_durable, write_private
from geartrain.adapters.sqlite import open_to_write, transaction
from geartrain.errors import ConfigError
from geartrain.schema import Field, FieldType, Schema
from geartrain.sinks import DeltaTable, ParquetTable
from geartrain_cloud.backup.contents import Contents
from geartrain_cloud.backup.elsewhere import check_elsewhere
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.backup.manifest import MANIFEST
from geartrain_cloud.backup.moment import moment_of
from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.backup.writing import back_up
from geartrain_cloud.cli.backup import bring_back
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.model import State, Submission
from geartrain_cloud.control_store.purges import Purge
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import StateError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared, SinkSaid, put_prepared
from geartrain_cloud.hosting.versions import Versions
from geartrain_cloud.log.opening import take_ledger
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.held_files import FROZEN, erasable_files
from geartrain_cloud.platform.places import RESTORING, PlatformPlaces
from geartrain_cloud.platform.runs import serve_run
from geartrain_cloud.sinks.opening import SinkPlace
from geartrain_cloud.spark.schema_paths import rebind
from tests.control.test_reconciler import OUTLINE
from tests.control.test_revisions import planned
from tests.hosting.test_group import version
from tests.waiting import WAIT_S

NOW_US = 1_700_000_000_000_000
SEGMENT = "segments/heat.1/readings/p0/000000000001-1.arrow"
CONF = json.dumps({"conf": {"spark.sql.shuffle.partitions": "1"}})


def now_us() -> int:
    return NOW_US


class Micro:
    """A group's checkpoint and the tables of one app, written as Spark and the host write them."""

    def __init__(self, state: Path) -> None:
        self.spark = state / "spark" / "groups" / "shared" / "spark"
        self.tables = open_to_write(state / "apps" / "heat.1" / "tables.sqlite", busy_s=10)
        self.tables.execute("CREATE TABLE IF NOT EXISTS marks (batch INTEGER, total INTEGER)")
        self.number = 0
        (self.spark / "metadata").parent.mkdir(parents=True, exist_ok=True)
        write_private(self.spark / "metadata", json.dumps({"id": "one"}))
        write_durable(self.spark.parent / "group.json", b'{"identity":"a","stages":2,"partitions":1}')

    def run(self) -> None:
        number = self.number
        write_private(self.spark / "offsets" / str(number), f"v1\n{CONF}\n{json.dumps({'a/0': number})}")
        for stage in "01":
            write_private(self.spark / "state" / stage / "0" / f"{number + 1}.changelog", "x")
            write_private(self.spark / "state" / stage / "_metadata" / "v2" / "0", "v2")
        with transaction(self.tables):
            self.tables.execute("INSERT INTO marks VALUES (?, ?)", (number, number * 10))
        write_private(self.spark / "commits" / str(number), f"v1\n{json.dumps({})}")
        self.number += 1


def make_platform(state: Path) -> Micro:
    """A state folder with one app that has run five micro-batches."""
    places = PlatformPlaces(state)
    store = ControlStore(places.control, now_us)
    store.devices.add("d1", {"kind": "room"})
    store.secrets.set("heat", "db", "a secret, whose key lies beside the store")
    store.close()
    ledger, _ = take_ledger(places.log / "ledger.sqlite", 1, (0,))
    ledger.close()
    write_private(places.token, "secret token")
    write_private(places.fleet / "ca.key", "secret key")
    write_private(places.bundles / "metadata" / "timestamp.json", "{}")
    write_private(places.spark_wanted, "{}")
    write_private(places.device("d1") / "desired.bin", "a device's own")
    micro = Micro(state)
    for _ in range(5):
        micro.run()
    write_private(micro.spark.parent / "parked" / "heat.1" / "7", b"parked rows")
    write_private(micro.spark / "state" / "0" / "0" / "99.changelog", "of a micro-batch that comes later")
    return micro


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder; of a database what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as database:
                found[path.relative_to(folder).as_posix()] = "\n".join(database.iterdump()).encode()
        elif path.is_file() and not path.name.endswith(("-wal", "-shm")):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_platform(tmp_path / "state").tables.close()
    return tmp_path / "state"


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_what_comes_back_is_what_was_there_and_nobody_else_may_read_it(
    tmp_path: Path, state: Path, name: str
) -> None:
    made = back_up(state, tmp_path / "backups" / name, now_us)
    found = restore(made.output, tmp_path / "new" / "state", lambda said: None)
    assert (found.made_us, found.files, found.size) == (NOW_US, made.files, made.size)
    before, after = content(state), content(found.state)
    left_out = {one for one in before if one not in after}
    assert left_out == {
        "agents/d1/desired.bin",
        "backup.lock",
        "control.lock",
        "spark/groups/shared/spark/state/0/0/99.changelog",
        "spark/wanted.json",
    }
    assert after == {one: raw for one, raw in before.items() if one not in left_out}
    kept = [path for top in (made.output, found.state) for path in (top, *top.rglob("*"))]
    assert {path.stat().st_mode & 0o777 for path in kept if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in kept if path.is_dir()} == {0o700}
    assert not (state / FROZEN).exists()
    store = ControlStore(PlatformPlaces(found.state).control, now_us)
    assert store.devices.get("d1").labels == {"kind": "room"}
    assert [one.name for one in store.secrets.page(10, "", "heat")[0]] == ["db"]
    store.close()
    assert "secrets.key" in after


@contextmanager
def running(micro: Micro) -> Iterator[None]:
    """Micro-batches one after another, until the block ends."""
    stopping = threading.Event()

    def run() -> None:
        database, micro.tables = (
            micro.tables,
            sqlite3.connect(
                micro.spark.parents[3] / "apps/heat.1/tables.sqlite", timeout=WAIT_S, isolation_level=None
            ),
        )
        try:
            while not stopping.is_set():
                micro.run()
                stopping.wait(0.03)
        finally:
            micro.tables.close()
            micro.tables = database

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_tables_and_checkpoint_of_a_platform_that_runs_fit_one_another(tmp_path: Path) -> None:
    micro, committed = make_platform(tmp_path / "state"), -1
    with running(micro):
        for number in range(5):
            made = back_up(tmp_path / "state", tmp_path / f"copy-{number}", now_us)
            spark = made.output / "spark/groups/shared/spark"
            committed = max(int(path.name) for path in (spark / "commits").iterdir())
            planned = max(int(path.name) for path in (spark / "offsets").iterdir())
            with closing(sqlite3.connect(made.output / "apps/heat.1/tables.sqlite")) as tables:
                rows = tables.execute("SELECT batch, total FROM marks ORDER BY batch").fetchall()
            # Spark runs what was planned and not committed again, with the positions that are there.
            assert rows == [(batch, batch * 10) for batch in range(len(rows))]
            assert committed <= rows[-1][0] <= planned <= committed + 1
            changes = {path.name for path in (spark / "state/0/0").iterdir()}
            assert changes == {f"{version}.changelog" for version in range(1, committed + 2)}
    assert micro.number > committed
    micro.tables.close()


def died_at(step: int, work: Callable[[Callable[[str], None]], object]) -> bool:
    """Do `work` in a process of its own that is killed at its notice number `step`; whether it came to it."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def notice(said: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(notice)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_a_backup_that_is_killed_at_any_step_is_none_and_the_next_one_is_whole(
    tmp_path: Path, state: Path, name: str
) -> None:
    output, before = tmp_path / name, content(state)
    step = 0
    while died_at(step, lambda notice: back_up(state, output, now_us, notice)):
        assert not output.exists()
        step += 1
    assert step > 15
    restored = restore(output, tmp_path / "new").state
    assert content(restored).items() <= before.items()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["new", name, "state"])
    assert {one for one in content(state) if one not in before} == {"backup.lock"}


def test_a_restore_that_is_killed_at_any_step_is_refused_by_name_and_begins_anew(
    tmp_path: Path, state: Path
) -> None:
    output, new, halves = back_up(state, tmp_path / "copy.tar", now_us).output, tmp_path / "new", 0
    step = 0
    while died_at(step, lambda notice: restore(output, new, notice)):
        step += 1
        if new.exists():
            halves += 1
            assert (new / RESTORING).exists()
            with pytest.raises(
                ConfigError, match=r"new is half restored, .* run gear restore BACKUP --state"
            ):
                read_platform(None, new)
    assert halves > 10
    assert read_platform(None, new).state == new
    whole = content(restore(output, tmp_path / "other").state)
    assert content(new) == whole


def test_what_spark_says_of_the_folder_is_true_of_the_one_that_it_comes_back_to(
    tmp_path: Path, state: Path
) -> None:
    operator = "spark/groups/shared/spark/state/0"
    schema = f"{operator}/_stateSchema/default/0_a"
    info = [{"storeName": "default", "stateSchemaFilePaths": [f"file:{state}/{schema}"]}]
    write_private(state / schema, "a schema")
    write_private(state / operator / "_metadata/v2/0", f"v2\n{json.dumps({'stateStoreInfo': info})}")
    write_private(state / operator / "_metadata/v2/1", "of another form")
    new = restore(back_up(state, tmp_path / "copy", now_us).output, tmp_path / "new").state
    version, _, said = (new / operator / "_metadata/v2/0").read_text(encoding="utf-8").partition("\n")
    [path] = json.loads(said)["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert (version, path) == ("v2", f"file:{new}/{schema}")
    assert Path(path.removeprefix("file:")).read_text(encoding="utf-8") == "a schema"
    assert (new / operator / "_metadata/v2/1").read_text(encoding="utf-8") == "of another form"
    moved = new.rename(tmp_path / "moved")
    rebind(moved)
    _, _, said = (moved / operator / "_metadata/v2/0").read_text(encoding="utf-8").partition("\n")
    assert json.loads(said)["stateStoreInfo"][0]["stateSchemaFilePaths"] == [f"file:{moved}/{schema}"]
    assert (moved / operator / "_metadata/v2/1").read_text(encoding="utf-8") == "of another form"


def test_a_token_that_was_revoked_behind_the_backup_is_good_again_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(ControlStore(tmp_path / "state" / "control.sqlite", now_us)) as store:
        _, token = store.bearers.add(Bearer("alice", "operator"), 3_600)
        copy = back_up(tmp_path / "state", tmp_path / "copy", now_us).output
        store.bearers.revoke("alice")
    bring_back(copy, tmp_path / "new", as_json=False)
    assert "tokens and certificates that were revoked since then are good again" in capsys.readouterr().out
    with closing(ControlStore(tmp_path / "new" / "control.sqlite", now_us)) as store:
        assert store.bearers.look(token, "own").name == "alice"


def test_files_of_history_are_named_where_they_come_back_to(tmp_path: Path, state: Path) -> None:
    places, name = PlatformPlaces(state), f"{'0' * 64}.csv"
    write_private(places.histories / name, "time,value\n")
    past = {"history": {"files": [str(places.histories / name)], "time": "time"}}
    store = ControlStore(places.control, now_us)
    asked = Submission("heat", "heat:flow", "auto", "all", {"readings": past}, {"d1": {"readings": past}})
    instance = store.apps.submit(asked, OUTLINE)
    store.apps.enter("heat.1", State.RUNNING)
    own = {"d1": {"readings": past}}
    store.apps.plan("heat", replace(planned(instance, "b"), options={"readings": past}, device_options=own))
    store.close()
    back_up(state, tmp_path / "copy.tar", now_us)
    restore(tmp_path / "copy.tar", tmp_path / "new")
    new = PlatformPlaces(tmp_path / "new")
    store = ControlStore(new.control, now_us)
    running = store.apps.newest("heat")
    following = store.revisions.next_of(running)
    assert following is not None
    moved = {"history": {"files": [str(new.histories / name)], "time": "time"}}
    for one in (running, following):
        assert (one.options["readings"], one.device_options["d1"]["readings"]) == (moved, moved)
    assert (new.histories / name).read_text() == "time,value\n"
    store.close()


def test_files_of_history_are_named_where_a_moved_folder_is_and_devices_are_told(
    tmp_path: Path, state: Path
) -> None:
    """Those that somebody else has named stay where they are, and an unmoved folder changes nothing."""
    places, name, others = PlatformPlaces(state), f"{'0' * 64}.csv", str(tmp_path / "elsewhere" / "mine.csv")

    def past(folder: Path) -> dict[str, Any]:
        return {"history": {"files": [str(folder / name), others], "time": "time"}}

    store = ControlStore(places.control, now_us)
    own = {"d1": {"readings": past(places.histories)}}
    asked = Submission("heat", "heat:flow", "auto", "all", device_options=own)
    instance = store.apps.submit(asked, OUTLINE)
    store.apps.enter("heat.1", State.RUNNING)
    store.apps.plan("heat", replace(planned(instance, "b"), device_options=own))
    serial = store.devices.get("d1").serial
    store.find_histories(places.histories)
    assert (store.devices.get("d1").serial, store.apps.newest("heat").device_options) == (serial, own)
    store.close()
    new = PlatformPlaces(state.rename(tmp_path / "moved"))
    with closing(ControlStore(new.control, now_us)) as store:
        for told in (serial + 1, serial + 1):  # once, whatever starts again
            store.find_histories(new.histories)
            running = store.apps.newest("heat")
            following = store.revisions.next_of(running)
            assert following is not None
            for one in (running, following):
                assert one.device_options == {"d1": {"readings": past(new.histories)}}
            assert store.devices.get("d1").serial == told


def flipped(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_damaged_backup_is_refused_and_nothing_is_written(tmp_path: Path, state: Path) -> None:
    folder = back_up(state, tmp_path / "copy", now_us).output
    file = back_up(state, tmp_path / "copy.tar", now_us).output
    new = tmp_path / "new"
    with tarfile.open(file) as tar:
        at = tar.getmember("fleet/ca.key").offset_data
    flipped(file, at)
    with pytest.raises(
        BackupError, match=r"copy.tar is damaged: fleet/ca.key in it is not what was backed up"
    ):
        restore(file, new)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(BackupError, match=r"backup.json, which gear backup writes last|is damaged"):
        restore(file, new)
    flipped(folder / "apps/heat.1/tables.sqlite", 5_000)
    with pytest.raises(BackupError, match=r"tables.sqlite in it is not what was backed up; take another"):
        restore(folder, new)
    flipped(folder / "apps/heat.1/tables.sqlite", 5_000)
    (folder / "control.sqlite").unlink()
    with pytest.raises(BackupError, match=r"control.sqlite in it is missing"):
        restore(folder, new)
    manifest = (folder / MANIFEST).read_text(encoding="utf-8")
    (folder / MANIFEST).write_text(manifest.replace('"fleet/ca.key"', '"../ca.key"'), encoding="utf-8")
    with pytest.raises(BackupError, match=r"names the file '../ca.key', which would lie outside"):
        restore(folder, new)
    (folder / MANIFEST).unlink()
    with pytest.raises(BackupError, match=r"has no backup.json, which gear backup writes last"):
        restore(folder, new)
    assert not new.exists()


def test_what_is_in_the_way_is_said_in_one_sentence(tmp_path: Path, state: Path) -> None:
    output = back_up(state, tmp_path / "copy", now_us).output
    with pytest.raises(BackupError, match=r"copy is there already: give --output another name"):
        back_up(state, output, now_us)
    with pytest.raises(BackupError, match=r"lies in the state folder itself"):
        back_up(state, state / "copy", now_us)
    with pytest.raises(BackupError, match=r"there is no platform in .*empty: give --state"):
        back_up(tmp_path / "empty", tmp_path / "other", now_us)
    with pytest.raises(BackupError, match=r"state is not empty: a backup is brought back to an empty folder"):
        restore(output, state)
    with pytest.raises(BackupError, match=r"there is no backup at .*nowhere"):
        restore(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(BackupError, match=r"ca.key is no backup, or is damaged"):
        restore(state / "fleet" / "ca.key", tmp_path / "new")
    with (
        moment_of(state, now_us),
        pytest.raises(BackupError, match=r"a backup of .* is being made, or .*: wait for it to end"),
    ):
        back_up(state, tmp_path / "second", now_us)
    assert not (tmp_path / "second").exists()


def test_a_run_that_takes_the_place_of_another_meanwhile_is_no_moment(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = PlatformPlaces(state).tables("heat.1")
    file = tables.parent / "lake.parquet" / "main-0000000000.parquet"
    write_private(file, "rows of the first run")
    linked = Contents.that_stay

    def swapped(contents: Contents) -> Iterator[Path]:
        serve_run(tables, 2)  # and the files of the first run go
        file.unlink(missing_ok=True)
        yield from linked(contents)

    monkeypatch.setattr(Contents, "that_stay", swapped)
    with moment_of(state, now_us) as moment:
        assert json.loads(moment.files["apps/heat.1/served.json"].read_text()) == {"run": 2}


def test_nothing_is_copied_while_it_is_erased_and_nothing_erased_while_it_is_copied(
    tmp_path: Path, state: Path
) -> None:
    left = state / FROZEN / SEGMENT  # a link that a killed backup has left
    write_private(left, "rows")
    with erasable_files(state), pytest.raises(BackupError, match=r"rows are being erased: wait for it"):
        back_up(state, tmp_path / "copy", now_us)
    assert not left.exists()
    with moment_of(state, now_us):
        said = pytest.raises(StateError, match=r"a backup of .* is being made")
        with said, erasable_files(state):
            raise AssertionError("it is copied")
    store = ControlStore(PlatformPlaces(state).control, now_us)
    store.purges.begin(Purge("d1", "stopping", 1, 0, "ann", {}, (), 0, 0, ""))
    for step in ("stopping", "replaying"):
        store.purges.enter("d1", step)
        with pytest.raises(BackupError, match="what device d1 sent is being erased, and a copy would hold"):
            back_up(state, tmp_path / "copy", now_us)
        assert not (tmp_path / "copy").exists()
    store.purges.enter("d1", "done", done_us=1)
    store.close()
    assert back_up(state, tmp_path / "copy", now_us).files


def test_tables_elsewhere_are_refused_while_the_host_runs_and_named_when_it_does_not(
    tmp_path: Path, state: Path
) -> None:
    from geartrain_cloud.spark.lock import StateLock

    write_private(state / "apps/heat.1/tables.postgresql", json.dumps({"schema": "heat_1", "owner": "a"}))
    lock = StateLock(state / "spark")
    with pytest.raises(
        BackupError, match=r"tables of heat.1 are in PostgreSQL, .* end the platform by gear down"
    ):
        back_up(state, tmp_path / "copy", now_us)
    lock.release()
    made = back_up(state, tmp_path / "copy", now_us)
    assert made.elsewhere == (
        "tables of heat.1 are in PostgreSQL: copy that before the platform is started again",
    )


@pytest.mark.parametrize("kind", [ParquetTable, DeltaTable])
def test_tables_in_a_folder_elsewhere_are_named(
    tmp_path: Path, state: Path, kind: type[ParquetTable | DeltaTable]
) -> None:
    host = HostPlaces(PlatformPlaces(state).spark)
    hosted = version(1)
    (flow,) = hosted.flows.values()
    schema = Schema("Reading", (Field("celsius", FieldType.FLOAT64),))
    sinks = kind("far", folder=str(tmp_path / "far")), kind("near"), kind("in", folder=str(state / "in"))
    said = tuple(SinkSaid.of(SinkPlace(sink.name, sink, schema)) for sink in sinks)
    put_prepared(host.plans, Prepared(flow.plan, flow.code, 1, (), (), said))
    Versions(host.group("all").versions).publish(hosted)
    assert check_elsewhere(state) == (
        f"sink far of stone.1 writes to {tmp_path / 'far'}: copy that before the platform is started again",
    )


def test_without_a_moment_between_micro_batches_there_is_no_backup(tmp_path: Path, state: Path) -> None:
    (state / "spark/groups/shared/spark/state/0/0/3.changelog").unlink()
    with pytest.raises(BackupError, match=r"3.changelog: it is missing: start the platform"):
        back_up(state, tmp_path / "copy", now_us)
    began = time.monotonic()
    micro = Micro(state)
    micro.number = 5

    def each_time() -> int:
        micro.run()
        return NOW_US

    with (
        pytest.raises(BackupError, match=r"no moment between two micro-batches was found in 0.2 s"),
        moment_of(state, each_time, within_s=0.2),
    ):
        pass
    assert time.monotonic() > began
    micro.tables.close()


def test_a_group_whose_query_keeps_no_state_is_backed_up(tmp_path: Path, state: Path) -> None:
    group = state / "spark" / "groups" / "shared"
    shutil.rmtree(group / "spark" / "state")
    with pytest.raises(BackupError, match="state"):
        back_up(state, tmp_path / "first", now_us)
    write_private(group / "group.json", b'{"identity":"a","stages":0,"partitions":1}')
    back_up(state, tmp_path / "second", now_us)
    assert (tmp_path / "second").exists()
