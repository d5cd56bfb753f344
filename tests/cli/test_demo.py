"""`gear demo` for any demo: its options come from what is installed, and a user's mistake is one sentence."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from geartrain_client.cli import main
from geartrain_cloud.cli import demo as running
from geartrain_cloud.cli import demos
from geartrain_cloud.cli.demo import DemoOptions, check_output
from geartrain_cloud.cli.demos import OwnOption, own_options
from geartrain_cloud.platform.places import PlatformPlaces
from tests.demo.path_run import gear_command, hops, is_running, pids, started_gear, wait_until
from tests.waiting import WAIT_S

Capture = pytest.CaptureFixture[str]


class WeatherOptions(msgspec.Struct, frozen=True, kw_only=True):
    log: Annotated[Path | None, Meta(description="Readings.", extra={"metavar": "FILE"})] = None
    unit: Annotated[Literal["celsius", "kelvin"], Meta(description="The unit.")] = "celsius"
    rain_share: Annotated[float, Meta(ge=0, le=1, description="How often it rains.")] | None = None
    stations: Annotated[int, Meta(ge=1, description="How many.")] = 3
    windy: Annotated[bool, Meta(description="With wind.")] = False


WEATHER: Any = SimpleNamespace(
    about="What the weather was.",
    examples=("gear demo weather",),
    options=WeatherOptions,
    part="station",
    devices=4,
    tables=("rain", "sun"),
    page_while_running=True,
    moves="",
    throttled_devices=0,
    throttled_speed="max",
)


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> list[DemoOptions]:
    """A demo of somebody else's is installed, and nothing runs: what it would be run with."""
    point = EntryPoint("weather", "tests.cli.test_demo:WEATHER", demos.GROUP)
    monkeypatch.setattr(demos, "entry_points", lambda group: [point])
    load = EntryPoint.load
    monkeypatch.setattr(EntryPoint, "load", lambda self: WEATHER if self == point else load(self))
    asked: list[DemoOptions] = []
    monkeypatch.setattr(running, "run_demo", lambda name, options: asked.append(options))
    return asked


def gear(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, " ".join(said.err.split())


def test_a_demo_brings_its_own_options_and_help(weather: list[DemoOptions], capsys: Capture) -> None:
    code, out, _ = gear(capsys, "demo", "--help")
    assert (code, "weather  What the weather was." in out) == (0, True)
    code, out, _ = gear(capsys, "demo", "weather", "--help")
    text = " ".join(out.split())
    assert code == 0
    assert "What the weather was." in text
    assert "Examples: gear demo weather" in text
    for shown in (
        "--log FILE Readings.",
        "--unit celsius|kelvin The unit. Default celsius.",
        "--windy With wind.",
        "Agents. Default 4, or one a station if there are fewer.",
        "--output DIR",
    ):
        assert shown in text
    assert not weather
    assert gear(capsys, "demo", "weather", "--rain-share", "0", "--windy", "--speed", "60")[0] == 0
    assert gear(capsys, "demo", "weather", "--log", "a.csv", "--unit", "kelvin", "--no-page")[0] == 0
    first, second = weather
    assert (first.own, first.speed, first.page) == ({"rain_share": 0.0, "windy": True}, "60", True)
    assert (second.own, second.page) == ({"log": Path("a.csv"), "unit": "kelvin"}, False)


def test_own_options_are_read_from_their_type() -> None:
    assert own_options(WEATHER) == [
        OwnOption("log", Path, None, "Readings.", "FILE"),
        OwnOption("unit", ("celsius", "kelvin"), "celsius", "The unit."),
        OwnOption("rain_share", float, None, "How often it rains.", None, 0, 1),
        OwnOption("stations", int, 3, "How many.", None, 1),
        OwnOption("windy", bool, False, "With wind."),
    ]


@pytest.mark.parametrize(
    "wrong", [["--unit", "rankine"], ["--rain-share", "1.5"], ["--stations", "0"], ["--passes", "a.csv"]]
)
def test_what_a_demo_does_not_take_is_refused(
    wrong: list[str], weather: list[DemoOptions], capsys: Capture
) -> None:
    code, _, said = gear(capsys, "demo", "weather", *wrong)
    assert (code, weather) == (2, [])
    assert wrong[0] in said


@pytest.mark.parametrize("arguments", [["demo"], ["demo", "stocks"], ["demo", "--help"]])
def test_without_the_examples_it_says_what_to_install(
    arguments: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demos, "entry_points", lambda group: [])
    code, _, said = gear(capsys, *arguments)
    assert (code, said) == (2, "gear: no demo is installed: run pip install geartrain-examples[data]")


def test_a_demo_that_cannot_be_loaded_is_a_sentence(
    weather: list[DemoOptions], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_any = EntryPoint.load

    def load(point: EntryPoint) -> Any:
        if point.group != demos.GROUP:
            return load_any(point)
        raise ModuleNotFoundError("No module named 'barometer'")

    monkeypatch.setattr(EntryPoint, "load", load)
    code, _, said = gear(capsys, "demo", "weather")
    assert (code, said) == (2, "gear: the demo 'weather' cannot be loaded: No module named 'barometer'")
    assert not weather


@pytest.mark.parametrize(
    ("demo", "option", "content", "said"),
    [
        (
            "stocks",
            "--input",
            b"symbol,date,price\nA,soon,1\nB,later,2\n",
            "none of its 2 rows is a record, as of in.csv, line 2: column date: 'soon' is not",
        ),
        (
            "traffic",
            "--passes",
            b"time_s,detector,edge,lane,vehicle,speed_mps\nx,c,S,0,v,9\n",
            "none of its 1 rows is a record, as of in.csv, line 2: column time_s: 'x' is not",
        ),
        ("stocks", "--input", "symbol,date,price\nÄ,2020-01-01,1\n".encode("latin-1"), "not UTF-8"),
        ("stocks", "--input", bytes(range(256)) * 40, "it holds a NUL at its byte 1, as a binary file does"),
    ],
)
def test_a_file_without_one_record_is_refused_at_once(
    demo: str, option: str, content: bytes, said: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    state = tmp_path / "state"
    code, out, err = gear(capsys, "demo", demo, option, str(path), "--state", str(state), "--no-page")
    assert code == (3 if "none of its" in said else code) != 0
    assert f"file {path}" in err
    assert said in err
    assert (out, "--measure" in err, (state / "logs").exists()) == ("", False, False)


def test_output_is_tried_before_the_run(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("x")
    for output in (tmp_path / "file" / "out.json", tmp_path):
        code, _, err = gear(capsys, "demo", "stocks", "--output", str(output), "--state", str(tmp_path / "s"))
        assert code == 2
        assert f"--output {output}" in err
    assert not (tmp_path / "s").exists()
    check_output(tmp_path / "out" / "deep", 2)
    check_output(tmp_path / "out.json", 1)
    assert not (tmp_path / "out.json").exists()


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """No file may grow, as on a disk without room: the system itself refuses each write."""

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    prices = tmp_path / "prices.csv"
    prices.write_text("symbol,date,price\nA,2020-01-01,1\n")
    command = gear_command("demo", "stocks", "--input", str(prices), "--state", str(tmp_path / "state"))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        preexec_fn=full,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"gear: the state folder {tmp_path / 'state'} cannot be written: File too large")


@pytest.mark.slow
def test_ctrl_c_says_what_stands_where_and_the_run_can_go_on(tmp_path: Path) -> None:
    places = PlatformPlaces(tmp_path / "state")
    common = ("demo", "stocks", "--no-page", "--broker", "amqtt", "--state", str(places.folder))
    with started_gear(*common, "--speed", "86400", "--devices", "2") as process:
        wait_until("rows are logged", lambda: hops(places).logged > 0, process)
        running_then = pids(places)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert not any(map(is_running, running_then))
    stopped, again, last = said.splitlines()[-3:]
    logged = hops(places).logged
    assert f"{logged:,} in the log (log/)" in stopped
    assert stopped.endswith("no process is left")
    assert again == f"to go on: gear demo stocks --state {places.folder}"
    assert last == "gear: stopped by SIGINT"
    assert (
        json.loads((places.folder / "demo.json").read_text())["finished"] is False
    )  # test_demo_own_prices goes on
