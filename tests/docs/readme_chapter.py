"""The README's chapter on the platform: its commands run as they stand, over the project of `gear new`."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from tests.waiting import WAIT_S

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
CHAPTER = README.partition("## Run it on a platform")[2].partition("\n## ")[0]
COMMANDS = [
    line.partition("#")[0].strip()
    for block in CHAPTER.split("```")[1::2]
    for line in block.splitlines()
    if line.strip()
]


def minutes(sample: Path) -> dict[tuple[str, str], tuple[int, float, float]]:
    """By sensor and start of the minute, what the flow must find: count, mean and maximum of the readings."""
    found: dict[tuple[str, str], list[float]] = {}
    with sample.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            celsius, moment = float(row["celsius"]), datetime.fromisoformat(row["time"]).astimezone(UTC)
            if celsius > -55:
                found.setdefault((row["sensor"], f"{moment:%Y-%m-%dT%H:%M:00Z}"), []).append(celsius)
    assert len(found) == 29
    return {
        place: (len(many), float(sum(map(Fraction, many)) / len(many)), max(many))
        for place, many in found.items()
    }


class Shell:
    """Runs the reader's commands in a folder."""

    def __init__(self, folder: Path, tools: Path) -> None:
        hidden = ("GEARTRAIN_", "PYTHONPATH", "PYTHONSAFEPATH", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        self._environment = kept | {"PATH": path, "HOME": str(folder)}
        self._folder = folder

    def run(self, command: str) -> str:
        """What it prints; it must succeed."""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.said()}"
        return done.stdout

    @contextmanager
    def beside(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on until Ctrl-C, which ends it as Ctrl-C should."""
        with (self._folder / f"{command.split(maxsplit=1)[0]}.out").open("a") as said:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE if "--follow" in command else said,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=WAIT_S) in (0, 130), self.said()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def said(self) -> str:
        """What those in the background have said."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.out")))


def wait_for_rows(
    process: subprocess.Popen[str], wanted: dict[tuple[str, str], tuple[int, float, float]]
) -> None:
    """Read what `--follow` prints until it is all that is wanted, so long at the most."""
    assert process.stdout is not None
    stop = threading.Timer(WAIT_S, process.terminate)
    stop.start()
    try:
        assert process.stdout.readline() == "sensor,window_start,readings,mean,highest\n"
        found: dict[tuple[str, str], tuple[int, float, float]] = {}
        while len(found) < len(wanted):
            line = process.stdout.readline()
            assert line, f"it ended with {found}"
            [[sensor, start, readings, mean, highest]] = csv.reader(io.StringIO(line))
            found[sensor, start] = (int(readings), float(mean), float(highest))
        assert found == wanted
    finally:
        stop.cancel()


def wait_until_up(shell: Shell) -> None:
    for _ in range(120):
        try:
            shell.run("gear status")
        except AssertionError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"the platform did not come up: {shell.said()}")


def run_chapter(home: Path, tools: Path) -> None:
    """Run its commands in the folder `home`; tools: the folder in which `gear` and `gear-agent` are."""
    new, plan, run, up, add_here, submit, follow, list_, add_truck, agent, submit_trucks = COMMANDS
    Shell(home, tools).run(new)
    folder = home / "heat"
    shell, wanted = Shell(folder, tools), minutes(folder / "data" / "readings.csv")
    assert "cut auto, 4 of 7 steps on the devices" in shell.run(plan)
    assert "read 180 records; late 0; dead letters 0" in shell.run(run)
    with shell.beside(up):
        wait_until_up(shell)
        shell.run(add_here)
        assert shell.run(submit).startswith("heat.1 ")
        with shell.beside(follow) as followed:
            wait_for_rows(followed, wanted)
        assert "heat.1" in shell.run(list_)
        shell.run(add_truck)
        with shell.beside(agent):
            assert shell.run(submit_trucks).startswith("trucks.1 ")
            with shell.beside("gear table trucks minutes --follow") as followed:
                wait_for_rows(followed, wanted)
