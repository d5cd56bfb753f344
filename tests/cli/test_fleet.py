"""`gear run --device`: each device reads what a platform would give it, and no other gets a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError
from geartrain_client.cli import main
from geartrain_cloud.cli.fleet import FleetDevice, parse_fleet

Capture = pytest.CaptureFixture[str]

FLOW = """
from geartrain import Flow, Record, Table, by_key
from geartrain.sinks import JsonLinesFile
from geartrain_devices.csv_replay import CsvReplay

class Level(Record):
    tank: str
    metres: float

class Limit(Record):
    tank: str
    metres: float

def judge(level, limits):
    limit = limits.get(level.tank)
    return Level(level.tank, level.metres - (limit.metres if limit else 0.0))

flow = Flow("tanks")
levels = flow.source("levels", CsvReplay(time_column="time"), out=Level, devices="site=north")
limits = flow.source("limits", CsvReplay(time_column="time"), out=Limit).at("cloud")
over = levels.broadcast("over", limits, judge, key="tank", out=Level)
over.sink("all", Table("all"))
over.key_by("tank").log("seen").at("edge", device=by_key).sink("valve", JsonLinesFile("valve"))
"""
LEVELS = {"tank-1": [7.5, 3.0], "tank-2": [9.0], "tank-3": [1.0]}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("tanks.py").write_text(FLOW, encoding="utf-8")
    for tank, levels in LEVELS.items():
        rows = [f"2026-01-01T00:0{at}:00Z,{tank},{metres}" for at, metres in enumerate(levels)]
        Path(f"{tank}.csv").write_text("\n".join(["time,tank,metres", *rows, ""]), encoding="utf-8")
    Path("limits.csv").write_text("time,tank,metres\n2026-01-01T00:00:00Z,tank-1,1.0\n", encoding="utf-8")


def run(*arguments: str) -> dict[str, Any]:
    assert main(["run", "tanks:flow", "--set", "limits.path=limits.csv", "--output", "out", *arguments]) == 0
    return {
        name: json.loads(Path(f"out/{name}.json").read_text()) for name in ("all", "valve", "dead_letters")
    }


def rows_of(table: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return sorted((row["tank"], row["metres"]) for row in table)


def test_each_device_reads_its_own_file_and_gets_its_own_records() -> None:
    own = [f"--device={tank}:levels.path={tank}.csv" for tank in ("tank-1", "tank-2")]
    found = run(*own, "--label=tank-1:site=north", "--label=tank-2:site=north")
    due = [("tank-1", 2.0), ("tank-1", 6.5), ("tank-2", 9.0)]
    assert rows_of(found["all"]) == due
    assert rows_of(found["valve"]) == due
    assert found["dead_letters"] == []


def test_a_device_lacks_a_source_that_is_for_others_and_a_record_for_none_is_a_dead_letter() -> None:
    """tank-2 reads what tank-3 has measured, too, and there is no tank-3."""
    Path("both.csv").write_text(Path("tank-2.csv").read_text() + "2026-01-01T00:01:00Z,tank-3,1.0\n")
    Path("fleet.toml").write_text(
        '[tank-1]\n[tank-2]\nlabels = {site = "north"}\n[tank-2.sources.levels]\npath = "both.csv"\n',
        encoding="utf-8",
    )
    found = run("--fleet", "fleet.toml")
    assert rows_of(found["all"]) == [("tank-2", 9.0), ("tank-3", 1.0)]
    assert rows_of(found["valve"]) == [("tank-2", 9.0)]
    (letter,) = found["dead_letters"]
    assert (letter["step"], letter["code"]) == ("seen_down", "no_device")
    assert "no device 'tank-3' is assigned" in letter["reason"]


def test_the_event_time_of_a_row_is_in_its_json_where_it_is_asked_for() -> None:
    found = run("--device=tank-1:levels.path=tank-1.csv", "--label=tank-1:site=north", "--event-times")
    assert [list(row.items()) for row in found["all"]] == [
        [("_event_time", "2026-01-01T00:01:00Z"), ("tank", "tank-1"), ("metres", 2.0)],
        [("_event_time", "2026-01-01T00:00:00Z"), ("tank", "tank-1"), ("metres", 6.5)],
    ]


def test_the_command_line_stands_above_the_file() -> None:
    Path("fleet.toml").write_text(
        '[tank-1]\nlabels = {site = "south"}\n[tank-1.sources.levels]\npath = "none.csv"\n', encoding="utf-8"
    )
    own = ["--device=tank-1:levels.path=tank-1.csv", "--label=tank-1:site=north"]
    assert rows_of(run("--fleet=fleet.toml", *own)["all"]) == [("tank-1", 2.0), ("tank-1", 6.5)]


WRONG = {
    ("--device=a b",): "--device a b: device 'a b': use a name of 1 to 64 letters",
    ("--device=cloud-1",): "cloud-1 is the platform's own device",
    ("--device=d:levels",): "--device d:levels: write STEP.OPTION=VALUE",
    ("--device=d:nothing.path=x",): "device d: flow tanks has no step 'nothing'",
    ("--device=d:over.path=x",): "device d: over is no source",
    ("--device=d:limits.path=x",): "device d: source limits is read in the cloud: set its options with --set",
    ("--device=d:levels.paths=x",): "device d levels",
    ("--device=d", "--label=d:site"): "--label d:site: write NAME:KEY=VALUE",
    ("--device=d", "--label=e:site=north"): "--label e:site=north: there is no device e",
    ("--device=d", "--label=d:site=n o"): "device d: label site='n o': use a value of 1 to 63 letters",
    ("--device=d", "--label=d:site=south"): "source levels is for devices site=north, and none of this run",
    ("--device=d", "--fetched=x"): "--fetched has the records of the app's own devices",
    ("--device=d", "--watch"): "--watch reads the sources as one device has them",
    ("--fleet=none.toml",): "--fleet none.toml cannot be read: No such file or directory",
    ("--fleet=tank-1.csv",): "--fleet tank-1.csv is no TOML",
    ("--fleet=odd.toml",): "--fleet odd.toml, [d]: a device has labels",
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.items())
def test_what_is_wrong_is_a_sentence(arguments: tuple[str, ...], said: str, capsys: Capture) -> None:
    Path("odd.toml").write_text("[d]\nlabel = {}\n", encoding="utf-8")
    assert main(["run", "tanks:flow", "--set", "limits.path=limits.csv", *arguments]) == 2
    printed = capsys.readouterr().err.replace("\n", " ")
    assert said in printed
    assert "Traceback" not in printed


def test_options_of_one_device_come_together() -> None:
    fleet = parse_fleet(["d:levels.path=a", "e", "d:levels.time_column=t", "d:other.path=b"])
    assert fleet == {
        "d": FleetDevice({}, {"levels": {"path": "a", "time_column": "t"}, "other": {"path": "b"}}),
        "e": FleetDevice(),
    }


def test_no_more_devices_than_a_run_takes() -> None:
    with pytest.raises(ConfigError, match="10,001 devices are more than one run takes, 10,000"):
        parse_fleet(f"d{number}" for number in range(10_001))
