"""A platform is backed up in mid-stream and lost with all that it has; what is restored elsewhere goes on.

The tables are compared with plain Python. A device of the platform's own machine is lost with it, and its
source is read again from where the restored log stands. A device elsewhere lives on, with a spool that holds
only what was not acked: what it no longer has is counted, and nothing else is missing. One that has joined
over mutual TLS, and was away as the copy was made, loses nothing, and gets each command once.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.tables import rows
from tests.control.platform_client import client_of
from tests.examples.test_control_loop import FLOW as CONTROL_LOOP
from tests.examples.test_control_loop import commands, minutes
from tests.ports import free_port
from tests.proofs.test_open_platform import become_author, join, running
from tests.proofs.test_platform import gear, until, until_ended
from tests.proofs.test_platform_kills import FLOW, Row, folded, write_readings
from tests.supervisor.test_up import is_alive, pids, platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROWS, SPEED = 3_000, "10"
"""Rows of each device, and how many of them a second until the platform is lost; then as fast as can be."""
FAST = '[apps.heat.sources.readings]\nspeed = "max"\n'
LEVELS = 6_000
"""Records of a tank: five minutes at the pace before the loss."""
FAST_TANK = FAST.replace("heat", "control_loop").replace("readings", "levels")


def table(state: Path, name: str) -> list[tuple[object, ...]]:
    """The rows of a table as it is on the disk."""
    try:
        found = rows(PlatformPlaces(state).tables("heat.1"), name, canonical=True)
    except TableError:  # it is not there yet
        return []
    return [tuple(row.values()) for row in found]


def of_device(found: list[tuple[object, ...]], device: str) -> list[tuple[object, ...]]:
    return [row for row in found if str(row[0]).startswith(f"{device}-")]


def lose(state: Path) -> None:
    """Take a platform's folder from under all that may still write there: a thread of a killed process does
    until its call of the system returns, when the process counts as ended already.
    """
    state.rename(state.with_name("lost"))


def test_a_platform_that_was_lost_goes_on_elsewhere_from_its_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("d1", "far")}
    read = {name: write_readings(path, name, ROWS, 7) for name, path in files.items()}
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state, new = tmp_path / "state", tmp_path / "elsewhere"
    far = tmp_path / "devices" / "far" / "device.toml"
    with platform(state) as process:
        client_of(state)
        gear(state, "device", "add", "d1", "--local")
        far.parent.mkdir(parents=True)
        far.write_text(gear(state, "device", "add", "far", "--file"), encoding="utf-8")
        with running(far, tmp_path):
            paces = [f"--set=readings.speed={SPEED}"]
            gear(state, "submit", "heat:flow", "--devices", "all", "--no-wait", *paces, *own)
            until(lambda: all(of_device(table(state, "results"), name) for name in files), "rows of both")
            copy = tmp_path / "copy.tar"
            made = json.loads(gear(state, "backup", "--output", str(copy), "--json"))
            assert made["bytes"] <= copy.stat().st_size
            backed_up = len(table(state, "results"))
            until(lambda: len(table(state, "results")) >= backed_up + 100, "rows behind the backup")
            lost = pids(state)
            process.kill()
            process.wait()
            until(lambda: not any(is_alive(pid) for pid in lost.values()), "the end of all")
            lose(state)
            said = gear(new, "restore", str(copy))
            assert f"go on with gear up --state {new}" in said
            before = len(table(new, "results"))
            assert 0 < before <= backed_up + 100
        (new / "platform.toml").write_text(FAST.replace("apps", "local.apps"), encoding="utf-8")
        far.write_text(far.read_text(encoding="utf-8") + FAST, encoding="utf-8")
        with running(far, tmp_path):
            go_on(new, read)
        assert len(table(new, "results")) > before


@pytest.mark.long
@pytest.mark.mosquitto
def test_an_open_platform_with_signed_code_and_outboxes_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is killed before the copy is made. It has records in its spool, and commands wait for it."""
    become_author(tmp_path, monkeypatch)
    state, new, copy = tmp_path / "state", tmp_path / "elsewhere", tmp_path / "copy.tar"
    given = tmp_path / "devices" / "tank-1" / "state" / "control_loop.1" / "valve.jsonl"
    fleet = f'[fleet]\naddress = "localhost"\nmqtt_port = {free_port()}\ndevice_port = {free_port()}\n'
    state.mkdir()
    (state / "platform.toml").write_text(fleet, encoding="utf-8")

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in given.read_text().splitlines()] if given.exists() else []

    with platform(state) as process:
        client_of(state)
        device = join(state, "tank-1", tmp_path / "devices")
        pace = [f"--set=levels.{key}={value}" for key, value in (("records", LEVELS), ("speed", 20))]
        gear(state, "submit", CONTROL_LOOP, "--name", "control_loop", "--devices", "all", "--no-wait", *pace)
        with running(device, tmp_path) as parent:
            until(lambda: len(lines()) >= 3, "the first commands")
            parent.kill()
            parent.wait()
        gear(state, "backup", "--output", str(copy))
        lost = pids(state)
        process.kill()
        process.wait()
        until(lambda: not any(is_alive(pid) for pid in lost.values()), "the end of all")
        lose(state)
    gear(new, "restore", str(copy))
    before, every = len(lines()), commands("tank-1", LEVELS)
    device.write_text(device.read_text(encoding="utf-8") + FAST_TANK, encoding="utf-8")
    with platform(new), running(device, tmp_path):
        until_ended(client_of(new), "control_loop")
        until(lambda: len(lines()) >= len(every), "all commands")
    found = lines()
    assert [{k: v for k, v in one.items() if k[0] != "_"} for one in found] == every
    assert len({one["_id"] for one in found}) == len(found) > before
    means = rows(PlatformPlaces(new).tables("control_loop.1"), "minutes")
    assert sorted((row["window_start"], row["level_m"]) for row in means) == minutes("tank-1", LEVELS)
    assert read_report(PlatformPlaces(new).ingest_status)["counters"].get("losses", 0) == 0


def go_on(state: Path, read: dict[str, list[Row]]) -> None:
    """Have the restored platform run to the end, and compare its tables."""
    with platform(state) as process:
        until_ended(client_of(state), "heat")
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    every, results = table(state, "every"), table(state, "results")
    assert len(every) == len(set(every)), "nothing is doubled"
    assert of_device(every, "d1") == read["d1"]
    assert of_device(results, "d1") == folded(read["d1"])
    # Of the device that lived on, one run of rows is missing: what was acked and trimmed behind the backup.
    kept = of_device(every, "far")
    missing = sorted(set(read["far"]) - set(kept), key=lambda row: row[1])
    assert kept == [row for row in read["far"] if row in set(kept)]
    assert [row[1] for row in missing] == list(range(missing[0][1], missing[-1][1] + 1)) if missing else True
    assert of_device(results, "far") == folded([row for row in read["far"] if row not in set(missing)])
    losses = read_report(PlatformPlaces(state).ingest_status)["counters"].get("losses", 0)
    assert losses == (1 if missing else 0)
