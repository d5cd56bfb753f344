"""`gear run --watch` as a person meets it: a file changes, the flow breaks and is mended, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from geartrain import Flow, Record, Table
from geartrain.runtime.local import LocalRun
from geartrain.testing import TestingSource
from geartrain_client.cli import main
from geartrain_cloud.cli.watched import CELL_CHARS_MAX, Streams, tapped
from geartrain_cloud.cli.watching import code_of, root_of, stamps
from tests.waiting import WAIT_S, wait_for

FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay

class Reading(Record):
    sensor: str
    celsius: float

def fahrenheit(reading: Reading) -> float:
    return reading.celsius * 9 / 5 + 32

print("the user's own words")
flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading)
readings.map(fahrenheit).sink("table", Table("fahrenheit"))
"""
ROWS = "time,sensor,celsius\n2026-01-05T08:00:00Z,hall,20\n2026-01-05T08:00:01Z,hall,21\n"


class Watching:
    """`gear run --watch` in a process of its own, and what it has said so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._said = folder / "said.txt"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "geartrain_client.cli", "run", *arguments, "--watch"],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(encoding="utf-8")

    def until(self, text: str, times: int = 1) -> str:
        """What was said when it holds a text so often."""
        until(lambda: self.said.count(text) >= times or self.process.poll() is not None)
        assert self.said.count(text) >= times, self.said
        return self.said

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)


def until(found: Callable[[], bool]) -> None:
    wait_for("what gear run --watch says", found)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watching]:
    (tmp_path / "heat_flow.py").write_text(FLOW, encoding="utf-8")
    (tmp_path / "readings.csv").write_text(ROWS, encoding="utf-8")
    watching = Watching(tmp_path, "heat_flow:flow", "--set", "readings.path=readings.csv")
    yield watching
    watching.process.kill()
    watching.process.wait()


WAITS = "waits for a change"


def test_a_flow_runs_again_when_its_input_or_its_files_change(watched: Watching, tmp_path: Path) -> None:
    said = watched.until(WAITS)
    assert "readings: 2 records" in said
    assert "fahrenheit: 2 records" in said
    assert "69.8" in said
    assert "the user's own words" in said
    with (tmp_path / "readings.csv").open("a", encoding="utf-8") as file:
        file.write("2026-01-05T08:00:02Z,hall,-40\nnonsense,hall,1\n")
    said = watched.until(WAITS, 2)
    assert "changed: readings.csv; runs again" in said
    assert "readings: 3 records" in said
    assert "read 3 records; dead letters 1\nthe last dead letter: readings: " in said
    module = tmp_path / "heat_flow.py"
    module.write_text(FLOW.replace("* 9 / 5", "* 9 / five"), encoding="utf-8")
    said = watched.until(WAITS, 3)
    assert "name 'five' is not defined" in said
    module.write_text(FLOW + "flow.nothing()\n", encoding="utf-8")
    said = watched.until(WAITS, 4)
    assert "gear: flow 'heat_flow:flow'" in said
    assert "its module raised AttributeError: 'Flow' object has no attribute 'nothing'" in said
    module.write_text("import os\nos._exit(7)\n", encoding="utf-8")
    said = watched.until(WAITS, 5)
    assert "gear: the run ended with exit code 7" in said
    module.write_text(FLOW.replace("+ 32", "+ 1032"), encoding="utf-8")
    assert "1069.8" in watched.until(WAITS, 6)
    assert "Traceback" not in watched.said
    below = psutil.Process(watched.process.pid).children(recursive=True)
    assert watched.stop() == 130
    assert watched.said.endswith("gear: stopped by SIGINT\n")
    until(lambda: not any(one.is_running() for one in below))
    assert not any(one.is_running() for one in below)


def test_a_source_that_goes_on_is_shown_meanwhile_and_ended_by_a_change(tmp_path: Path) -> None:
    live = FLOW.replace("from geartrain_devices.csv_replay import CsvReplay", "").replace(
        'CsvReplay(time_column="time")', "Thermometer()"
    )
    sensor = """
from geartrain_devices.simulated import SimulatedSensor

class Thermometer(SimulatedSensor):
    def make(self, random, number, device):
        return Reading("a", number / 2)

print("the user's own words")"""
    module = tmp_path / "heat_flow.py"
    module.write_text(live.replace('\nprint("the user\'s own words")', sensor), encoding="utf-8")
    watching = Watching(tmp_path, "heat_flow:flow", "--rows", "1")
    try:
        said = watching.until("dead letters 0")
        assert WAITS not in said
        assert said.count("\n  20") == 2  # a row of each of its two streams
        [run] = psutil.Process(watching.process.pid).children(recursive=True)
        module.write_text("flow = 7\n", encoding="utf-8")
        assert "flow is a int, not a Flow" in watching.until(WAITS)
        assert not run.is_running()
    finally:
        assert watching.stop() == 130


def test_what_cannot_be_watched_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--output", "out"], ["--actuate"], ["--json"], ["--fetched", "folder"]):
        assert main(["run", "heat_flow:flow", "--watch", *more]) == 2
        assert "--watch shows the last records and writes nothing: leave --output" in capsys.readouterr().err


def test_the_files_of_a_project_are_watched_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"pyproject.toml", "heat/flow.py", "heat/deep/more.py"}
    others = {
        "README.md",
        ".git/x.py",
        ".venv/y.py",
        "env/pyvenv.cfg",
        "env/lib/z.py",
        "heat/__pycache__/w.py",
    }
    for name in wanted | others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    found = {str(one.relative_to(tmp_path)) for one in code_of(tmp_path)}
    assert found == wanted
    assert stamps(iter([tmp_path / "gone.py"])) == {}
    (tmp_path / "heat" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert root_of("heat.flow:flow") == tmp_path / "heat"
    monkeypatch.chdir(tmp_path)
    for missing in ("no_such_module_here:flow", "sys:flow", "not a name:flow", ".:flow"):
        assert root_of(missing) == tmp_path


class Odd(Record):
    text: str
    many: list[int]


def _size(odd: Odd) -> int:
    if not odd.many:
        raise ValueError("nothing in it")
    return len(odd.text) + 1 if len(odd.text) > CELL_CHARS_MAX else 2 * len(odd.text)


def _newest(left: Odd, right: Odd) -> Odd:
    return right


def test_each_stream_is_counted_and_its_last_records_are_text() -> None:
    flow = Flow("odd")
    items = [(5, Odd("x" * 99, [1])), (6, Odd("", [])), (7, Odd("\x1b[2J", [2]))]
    odd = flow.source("odd", TestingSource(items=items), out=Odd)
    odd.map(_size, name="sizes").sink("kept", Table("kept"))
    odd.key_by("text").reduce("newest", _newest).sink("also", Table("also"))
    streams, run = Streams(flow.graph(), 2), LocalRun(tapped(flow.graph()))

    async def read() -> None:
        async for output in run.outputs():
            streams.take(output)

    asyncio.run(read())
    shown = {one.name: one for one in streams.shown()}
    assert {name: one.count for name, one in shown.items()} == {"odd": 3, "sizes": 2, "newest": 3}
    assert shown["odd"].heads == ["event time", "text", "many"]
    assert shown["odd"].rows[0] == ["1970-01-01T00:00:00.000006Z", "", "[]"]
    assert shown["sizes"].heads == ["event time", "value"]
    assert [row[1] for row in shown["sizes"].rows] == ["100", "8"]
    assert len(shown["newest"].rows) == 2
    assert (streams.letters, streams.reason) == (1, "sizes: ValueError: nothing in it")
