"""History of devices on a whole platform: before live records and in a run apart, though processes die.

One device has its own file, as on another machine, and names its history there.

The tables are compared with what plain Python makes of the same rows.
"""

from __future__ import annotations

import csv
import json
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.control.platform_client import Client, client_of
from tests.proofs.test_open_platform import running
from tests.proofs.test_platform import gear, kill, until, until_ended
from tests.supervisor.test_up import is_alive, pids, platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOW = """
from geartrain import Context, Flow, Record, State, Table, Task
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    celsius: float


class Step(Record):
    sensor: str
    number: int
    change: float


class Last(State):
    number: int = 0
    celsius: float = 0.0


class Steps(Task[Reading, Step]):
    state = Last

    def on_next(self, reading: Reading, ctx: Context[Step, Last]) -> None:
        ctx.state.number += 1
        change, ctx.state.celsius = reading.celsius - ctx.state.celsius, reading.celsius
        ctx.emit(Step(reading.sensor, ctx.state.number, change))


flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading, partitioned_by="sensor")
readings.key_by("sensor").process("steps", Steps(), out=Step).sink("all", Table("steps"))
"""

Row = tuple[str, str, float]


def _rows(month: int, sensors: str, seed: int, count: int = 400) -> list[Row]:
    """Readings in no order, a minute apart."""
    chance = random.Random(seed)
    found = [
        (
            f"2026-{month:02}-01T{n // 60:02}:{n % 60:02}:00Z",
            chance.choice(sensors),
            float(chance.randrange(100)),
        )
        for n in range(count)
    ]
    chance.shuffle(found)
    return found


def _write(path: Path, rows: list[Row]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("time", "sensor", "celsius"), *rows])
    return str(path)


AS_WRITTEN = (
    "--set",
    "delimiter=;",
    "--set",
    "decimal=,",
    "--set",
    "encoding=utf-16",
    "--set",
    "skip_lines=1",
)


def _write_otherwise(path: Path, rows: list[Row]) -> str:
    """As a spreadsheet of another country writes the rows: `AS_WRITTEN` reads them."""
    with path.open("w", encoding="utf-16", newline="") as file:
        file.write("of the plant\r\n")
        written = [(time, sensor, str(celsius).replace(".", ",")) for time, sensor, celsius in rows]
        csv.writer(file, delimiter=";").writerows([("time", "sensor", "celsius"), *written])
    return str(path)


def _steps(*parts: list[Row]) -> list[list[object]]:
    """What the flow makes of rows, each part in the order of its times."""
    last: dict[str, tuple[int, float]] = {}
    found: list[list[object]] = []
    for part in parts:
        for _, sensor, celsius in sorted(part, key=lambda row: row[0]):
            number, former = last.get(sensor, (0, 0.0))
            last[sensor] = number + 1, celsius
            found.append([sensor, number + 1, celsius - former])
    return sorted(found, key=repr)


def _table(client: Client, app: str) -> list[list[object]]:
    rows: list[list[object]] = client.get(f"/apps/{app}/tables/steps?limit=10000")["rows"]
    return sorted(rows, key=repr)


def _elsewhere(state: Path, folder: Path, history: list[Row]) -> Path:
    """The file of a device as on another machine, which names files of its own as history."""
    file, past = folder / "far" / "device.toml", _write(folder / "past.csv", history)
    file.parent.mkdir()
    head = gear(state, "device", "add", "far", "--file", "--label", "kind=room")
    file.write_text(f'{head}\n[apps.heat.sources.readings.history]\nfiles = ["{past}"]\n', encoding="utf-8")
    return file


def _submit(state: Path, *more: str) -> None:
    """Submit the flow for devices that may come later."""
    devices = ("--devices", "kind=room", "--allow-none")
    gear(state, "submit", "heat:flow", *devices, "--cut", "cloud", "--no-wait", *more)


def _backfill(state: Path, device: str, *arguments: str) -> str:
    return gear(state, "backfill", "heat", "--source", "readings", "--device", device, *arguments)


def test_history_comes_before_live_records_or_into_a_run_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    old, older = _rows(2, "ab", 1), _rows(1, "ab", 2)
    live, other, history = _rows(3, "ab", 3), _rows(3, "cd", 4), _rows(1, "cd", 5)
    files = [
        "--file",
        _write_otherwise(tmp_path / "old.csv", old),
        "--file",
        _write_otherwise(tmp_path / "older.csv", [*older, ("x", "a", 1.0)]),
        *AS_WRITTEN,
    ]
    apart = ["--file", _write(tmp_path / "history.csv", [*history, ("never", "c", 1.0)])]
    past, distant = _rows(1, "ef", 6), _rows(3, "ef", 7)
    rows = {"d1": live, "d2": other, "far": distant}
    own = {device: _write(tmp_path / f"{device}.csv", found) for device, found in rows.items()}
    given = [f"--device-set={device}:readings.path={path}" for device, path in own.items()]
    state = tmp_path / "state"
    with ExitStack() as running_there, platform(state):
        client = client_of(state)
        _submit(state, *given)
        assert json.loads(_backfill(state, "d1", *files, "--dry-run", "--json"))["way"] == "before"
        assert client.get("/apps/heat")["applied"] == []
        assert "d1 begins with this history" in _backfill(state, "d1", *files)
        assert "nothing was added" in _backfill(state, "d1", *files)
        running_there.enter_context(running(_elsewhere(state, tmp_path, past), tmp_path))
        for device in ("d1", "d2"):
            client.ask(
                "POST", "/devices", {"name": device, "labels": {"kind": "room"}, "local": True}, expect=201
            )
        made = json.loads(_backfill(state, "d2", *apart, "--no-wait", "--json"))
        assert (made["way"], made["is_new"]) == ("apart", True)
        for victim in ("ingest", "spark", "device d1", "device cloud-1"):
            kill(state, victim)
        run = made["app"]
        until_ended(client, run)
        until_ended(client, "heat")
        expected = sorted([*_steps([*old, *older], live), *_steps(other), *_steps(past, distant)], key=repr)
        assert _table(client, "heat") == expected
        assert _table(client, run) == _steps(history)
        (letter,) = client.get("/apps/heat/tables/dead_letters")["rows"]
        assert any("older.csv" in str(one) or "line 403" in str(one) for one in letter), letter
        again = _backfill(state, "d2", *apart)
        assert "nothing was added" in again
        assert f"1 row was no record: gear table {run} dead_letters" in again
        assert _table(client, run) == _steps(history)
        assert _table(client, "heat") == expected


@pytest.mark.long
def test_a_device_that_has_read_its_history_goes_on_where_the_state_folder_was_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    past, live = _rows(2, "ab", 1), _rows(3, "ab", 3)
    given = f"--set=readings.path={_write(tmp_path / 'live.csv', live)}", "--set=readings.speed=200"
    state, moved = tmp_path / "state", tmp_path / "moved"
    with platform(state) as process:
        client = client_of(state)
        _submit(state, *given)
        assert "begins with" in _backfill(state, "d1", "--file", _write(tmp_path / "past.csv", past))
        gear(state, "device", "add", "d1", "--local", "--label", "kind=room")

        def held() -> int:
            status, found = client.ask("GET", "/apps/heat/tables")
            tables = found["items"] if status == 200 else ()  # they are being made
            return sum(table["rows"] for table in tables if table["name"] == "steps")

        until(lambda: held() > len(past), "what comes behind the history, for 120 s")
        assert held() < len(past) + len(live)
        there = pids(state)
        process.send_signal(signal.SIGTERM)
        process.wait()
        until(lambda: not any(is_alive(pid) for pid in there.values()), "the end of all")
    state.rename(moved)
    with platform(moved):
        client = client_of(moved)
        until_ended(client, "heat")
        assert _table(client, "heat") == _steps(past, live)
        assert client.get("/apps/heat/tables/dead_letters")["rows"] == []
