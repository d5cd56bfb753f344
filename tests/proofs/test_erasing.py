"""What a device sent goes out of a real platform: its log, and by a replay its tables. Rows go by age.

Where the platform dies meanwhile is drawn by the commit; `make proofs-long` takes each place.
"""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pytest

from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.platform.runs import runs_with_tables, served_run
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.parquet_form import read_table
from tests.control.platform_client import client_of
from tests.drawing import drawn
from tests.ports import free_port
from tests.proofs.test_open_platform import become_author, join, running
from tests.proofs.test_platform import gear, until, until_ended
from tests.supervisor.test_up import is_alive, pids, platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOW = """
from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.sinks import DeltaTable, ParquetTable
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    room: str
    celsius: float


class Highest(State):
    celsius: float = float("-inf")


class Records(Task[Reading, Reading]):
    state = Highest

    def on_next(self, reading: Reading, ctx: Context[Reading, Highest]) -> None:
        if reading.celsius > ctx.state.celsius:
            ctx.state.celsius = reading.celsius
            ctx.emit(reading)


flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading, partitioned_by="sensor")
readings.sink("kept", Table("kept"))
readings.sink("lake", ParquetTable("lake"))
readings.sink("delta", DeltaTable("delta"))
readings.key_by("room").process("records", Records()).sink("highs", Table("highs", key=("room",)))
"""
GONE, STAYS, LAST = "secret-of-d1", "reading-of-d2", "last-of-d2"
DEATHS = ("gear up", "control", "spark")
"""What is killed while a device goes out of a running platform."""


def write_readings(path: Path, sensor: str, base: float) -> list[list[Any]]:
    """A file of readings of three rooms, as rows of a table."""
    found = []
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["time", "sensor", "room", "celsius"])
        for minute in range(300):
            row = [f"{sensor}-{minute}", f"room-{minute % 3}", round(base + minute * 37 % 100 / 7, 3)]
            out.writerow([f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z", *row])
            found.append(row)
    return found


def files_with(state: Path, text: str) -> set[str]:
    """The files below `state` that hold a text, without those of the devices."""
    return {
        str(path.relative_to(state))
        for path in state.rglob("*")
        if path.is_file()
        and text.encode() in path.read_bytes()
        and path.relative_to(state).parts[0] != "agents"
    }


def assert_files(state: Path, instance: str, expected: list[list[Any]]) -> None:
    """The Parquet and the Delta table of the run that is served have these rows, and no other run has any."""
    app = AppTables(PlatformPlaces(state).tables(instance))
    lake, delta = sorted(app.folders(), key=lambda folder: folder.suffix, reverse=True)
    tables = read_table(lake), deltalake.DeltaTable(str(delta)).to_pyarrow_table()
    for table in tables:
        rows = zip(*(table[name].to_pylist() for name in ("sensor", "room", "celsius")), strict=True)
        assert sorted(map(list, rows)) == sorted(expected)
    assert {one.parent.parent for one in state.glob(f"apps/{instance}/**/*.parquet") if one.is_file()} == {
        lake.parent
    }


def rows_of(client: Any, app: str, table: str) -> list[Any]:
    return list(client.get(f"/apps/{app}/tables/{table}?limit=1000")["rows"])


def stop(process: Any, state: Path) -> None:
    running = pids(state)
    process.send_signal(signal.SIGTERM)
    process.wait()
    until(lambda: not any(is_alive(pid) for pid in running.values()), "the end of all")


@pytest.mark.long
def test_a_device_goes_out_of_log_and_tables_and_rows_go_by_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "d2")}
    erased = write_readings(files["d1"], GONE, 20.0)
    others = write_readings(files["d2"], STAYS, 0.0)
    highs = {room: max(celsius for _, of, celsius in others if of == room) for _, room, _ in others[:3]}
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state = tmp_path / "state"
    places = PlatformPlaces(state)

    def rows(table: str) -> list[Any]:
        return list(client_of(state).get(f"/apps/heat/tables/{table}?limit=1000")["rows"])

    with platform(state) as process:
        client = client_of(state)
        for name in files:
            gear(state, "device", "add", name, "--local", "--label", "kind=room")
        gear(state, "submit", "heat:flow", "--devices", "kind=room", "--cut", "cloud", "--no-wait", *own)
        until_ended(client, "heat")
        assert rows("kept") == sorted(erased + others)
        takes = client.get("/apps/heat")
        log_bytes = takes["retention"]["log_bytes"]
        assert 0 < log_bytes < takes["cost"]["disk_bytes"]
        gear(state, "device", "retire", "d1")
        stop(process, state)
    assert any(name.startswith("log/") for name in files_with(state, GONE))
    assert_files(state, "heat.1", erased + others)
    found = json.loads(gear(state, "log", "erase", "d1", "--yes", "--json"))
    assert (found["flows"], found["rows"]) == (["heat.1"], len(erased))
    assert not any(name.startswith("log/") for name in files_with(state, GONE))
    with platform(state) as process:
        client = client_of(state)
        gear(state, "replay", "heat")
        tables = places.tables("heat.1")
        until(lambda: served_run(tables) == 2 and runs_with_tables(tables) == {2}, "the second run alone")
        until_ended(client, "heat")
        assert rows("kept") == sorted(others)
        assert {room: celsius for _, room, celsius in rows("highs")} == highs
        assert_files(state, "heat.1", others)
        stop(process, state)
    assert files_with(state, GONE) == set()  # of Spark's files, which are compressed, this says nothing
    with platform(state) as process:
        client_of(state)
        gear(state, "retain", "heat", "--tables", "1d")
        until(lambda: len(rows("kept")) == 1 and not rows("highs"), "rows of January have gone")
        kept = client_of(state).get("/apps/heat")["retention"]
        assert kept["tables_removed"] == len(others) - 1 + len(highs)
        stop(process, state)


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(drawn("deaths of a purge", DEATHS, 1), id="drawn"),
        pytest.param(DEATHS, id="each", marks=pytest.mark.long),
    ],
)
def test_a_device_goes_out_of_a_running_platform_that_is_killed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "d2")}
    erased = write_readings(files["d1"], GONE, 20.0)
    others = write_readings(files["d2"], STAYS, 0.0)
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state = tmp_path / "state"
    with platform(state) as process:
        client = client_of(state)
        for name in files:
            gear(state, "device", "add", name, "--local", "--label", "kind=room")
        endless = (
            tmp_path / "endless.csv"
        )  # its last row is not due within the hour, or as an agent comes back
        endless.write_text(f"{files['d2'].read_text()}2030-01-01T00:00:00Z,{LAST},room-0,-99\n")
        beside = f"--device-set=d2:readings.path={endless}", "--set=readings.speed=20000"
        gear(state, "submit", "heat:flow", "--name", "beside", "--devices", "d2", "--no-wait", *beside)
        gear(state, "submit", "heat:flow", "--devices", "kind=room", "--cut", "cloud", "--no-wait", *own)
        until_ended(client, "heat")
        until(lambda: rows_of(client, "beside", "kept") == sorted(others), "the app beside it")
        assert_files(state, "heat.1", erased + others)
        assert any(name.startswith("apps/heat.1/lake.parquet/") for name in files_with(state, GONE))
        planned = json.loads(gear(state, "device", "purge", "d1", "--dry-run", "--json"))
        assert (planned["step"], planned["obstacles"]) == ("planned", [])
        assert planned["replays"] == ["beside.1", "heat.1"]
        assert planned["rows"] == 300
        made = json.loads(gear(state, "device", "purge", "d1", "--yes", "--no-wait", "--json"))
        assert made["step"] == "stopping"
        if "gear up" not in deaths:
            purged(process, state, deaths, others)
        else:
            running = pids(state)
            process.kill()
            process.wait()
            until(lambda: not any(is_alive(pid) for pid in running.values()), "the end of all")
    if "gear up" in deaths:
        with platform(state) as process:
            client_of(state)
            purged(process, state, deaths, others)
    assert PlatformPlaces(state).spark.joinpath("groups", "all").exists() is False
    held = {path for path in state.rglob("*") if path.is_file() and GONE.encode() in path.read_bytes()}
    assert held == set()


@pytest.mark.long
@pytest.mark.mosquitto
def test_a_device_elsewhere_that_was_away_removes_what_it_keeps_as_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_author(tmp_path, monkeypatch)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "d2")}
    write_readings(files["d1"], GONE, 20.0)
    others = write_readings(files["d2"], STAYS, 0.0)
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state, kept = tmp_path / "state", tmp_path / "devices" / "d1" / "state"
    state.mkdir()
    fleet = f'[fleet]\naddress = "localhost"\nmqtt_port = {free_port()}\ndevice_port = {free_port()}\n'
    (state / "platform.toml").write_text(fleet)

    def still_held() -> list[Path]:
        return [*kept.rglob("heat.1")]

    with platform(state) as process:
        client = client_of(state)
        device = join(state, "d1", tmp_path / "devices")
        gear(state, "device", "add", "d2", "--local")
        with running(device, tmp_path):
            gear(state, "submit", "heat:flow", "--devices", "all", "--cut", "cloud", "--no-wait", *own)
            until_ended(client, "heat")
        assert still_held()
        gear(state, "device", "purge", "d1", "--yes", "--no-wait")
        until(lambda: client.get("/devices/d1/purge")["step"] == "done", "the end of the purge")
        said = client.get("/devices/d1/purge")["not_reached"]
        assert any(one.startswith("the disk of d1, until it is heard of") for one in said)
        assert client.get("/apps/heat/tables/kept?limit=1000")["rows"] == sorted(others)
        with running(device, tmp_path):
            until(lambda: not still_held(), "what the device removes")
            until(
                lambda: (
                    not any("the disk of d1" in one for one in client.get("/devices/d1/purge")["not_reached"])
                ),
                "that the device has said so",
            )
        stop(process, state)
    assert not any(GONE.encode() in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert files_with(state, GONE) == set()


def purged(process: Any, state: Path, deaths: Sequence[str], others: list[list[Any]]) -> None:
    """What is under way comes to its end, with deaths on the way. Then rows go by age, and all ends."""
    tables = PlatformPlaces(state).tables("heat.1")

    def rows(table: str) -> list[Any]:
        return rows_of(client_of(state), "heat", table)

    def step() -> str:
        return str(client_of(state).get("/devices/d1/purge")["step"])

    def kill(name: str) -> None:
        if name in deaths and (pid := pids(state).get(name)) is not None:
            os.kill(pid, signal.SIGKILL)

    kill("control")
    until(lambda: step() != "stopping", "what is erased of files")
    kill("control")
    kill("spark")
    until(lambda: step() == "done", "the end of the purge")
    assert runs_with_tables(tables) == {served_run(tables)} == {2}
    until_ended(client_of(state), "heat")
    assert rows("kept") == sorted(others)
    highs = {room: max(celsius for _, of, celsius in others if of == room) for _, room, _ in others[:3]}
    assert {room: celsius for _, room, celsius in rows("highs")} == highs
    beside = rows_of(client_of(state), "beside", "kept")
    assert [row for row in beside if row[0] != LAST] == sorted(others)
    assert {room: c for _, room, c in rows_of(client_of(state), "beside", "highs")} == highs
    assert_files(state, "heat.1", others)
    told = client_of(state).get("/apps/heat")
    assert told["files"] == [str(tables.parent / "run-2" / one) for one in ("delta.delta", "lake.parquet")]
    audit = client_of(state).get("/audit?limit=100")["items"]
    assert [one["device"] for one in audit if one["path"].endswith("/purge")] == ["d1", "d1"]
    assert json.loads(gear(state, "log", "verify", "--json"))["whole"]
    gear(state, "retain", "heat", "--tables", "1d")
    until(lambda: len(rows("kept")) == 1 and not rows("highs"), "rows of January have gone")
    stop(process, state)
