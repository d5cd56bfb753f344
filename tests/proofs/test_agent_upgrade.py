"""Another program of the agent over the air, while a flow runs: real wheels, a platform, Spark, a device.

The device has an environment of its own with the wheels of today. It is started again whenever it ends, as by
systemd. The rows of the flow equal plain Python, whichever programs have run it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from geartrain import __version__
from geartrain_client.signing.keys import new_author
from tests.control.platform_client import client_of
from tests.packaging.environments import environment, uv
from tests.proofs.test_open_platform import AGENT, join, open_platform
from tests.proofs.test_over_the_air import ITEMS, PAUSE_S, gear, project, rows
from tests.proofs.test_platform import until, until_ended
from tests.supervisor.test_up import platform
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

PARTS = ("protocol", "devices", "edge")
GOOD, BAD = "0.2.901", "0.2.902"
MORE, SLOWER_S = 8_000, 0.02
"""Records of the flow, and seconds for each: it runs on while the device's program changes twice."""


def sources(folder: Path, version: str) -> list[Path]:
    """The parts of a device, of another version."""
    made = []
    for part in PARTS:
        left_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        made.append(Path(shutil.copytree(ROOT / part, folder / part, ignore=left_out)))
        files = [made[-1] / "pyproject.toml"]
        files += [made[-1] / "geartrain" / "__init__.py"] if part == "protocol" else []
        for file in files:
            file.write_text(file.read_text().replace(f'{__version__}"', f'{version}"'))
    return made


def wheels(folder: Path, version: str, *, comes_up: bool = True) -> str:
    """A folder with the wheels of a version, whose agent ends at once where it is not to come up."""
    parts = sources(folder / f"sources-{version}", version)
    if not comes_up:
        main = parts[-1] / "geartrain_edge" / "parent" / "main.py"
        main.write_text(main.read_text() + "\n\nraise SystemExit(7)\n")
    built = folder / f"wheels-{version}"
    for part in parts:
        uv("build", "--quiet", "--wheel", "--out-dir", str(built), str(part))
    return str(built)


@contextmanager
def tended(python: str, file: Path, where: Path) -> Iterator[None]:
    """A device's program, which is started again whenever it ends."""
    over, processes = threading.Event(), list[subprocess.Popen[bytes]]()
    command = [python, *AGENT, "--device", str(file)]

    def tend() -> None:
        with (file.parent / "log").open("wb") as log:
            while not over.is_set():
                if not processes or processes[-1].poll() is not None:
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=where))
                over.wait(0.1)

    thread = threading.Thread(target=tend)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        processes[-1].terminate()
        processes[-1].wait(WAIT_S)


def agent_of(state: Path, keys: Path) -> dict[str, Any]:
    (found,) = json.loads(gear(state, keys, "agent", "ls", "--json"))
    return dict(found)


def test_a_flow_runs_on_through_another_program_and_one_that_never_comes_up(tmp_path: Path) -> None:
    nothing, keys, state = tmp_path / "nothing", tmp_path / "keys", tmp_path / "state"
    nothing.mkdir()
    new_author(keys, "alice")
    here = sources(tmp_path / "sources", __version__)
    python = str(environment(tmp_path / "venv", *map(str, here[:-1]), f"{here[-1]}[fleet]"))
    good, bad = wheels(tmp_path, GOOD), wheels(tmp_path, BAD, comes_up=False)
    folder = project(tmp_path, 1)
    flow = folder / "secretflow" / "flow.py"
    slower = flow.read_text().replace(f"range({ITEMS})", f"range({MORE})")
    flow.write_text(slower.replace(f"sleep({PAUSE_S})", f"sleep({SLOWER_S})"))
    open_platform(state)
    with platform(state):
        client = client_of(state)
        device = join(state, "truck-1", tmp_path / "devices", python)
        device.write_text(device.read_text() + "\n[program]\ndeadline_s = 60\ntries_max = 2\n")
        with tended(python, device, nothing):
            gear(state, keys, "submit", str(folder))
            until(lambda: client.get("/apps/air/tables"), "the first rows")
            asked = ("agent", "upgrade", "--devices", "all", "--to")
            said = gear(state, keys, *asked, GOOD, "--wheels", good)
            assert said == "applied by 1 of 1 devices\n"
            first = agent_of(state, keys)
            assert (first["version"], first["state"]) == (GOOD, "as wanted")
            assert first["program"] == first["wanted"] != ""
            assert client.get("/apps/air")["state"] == "running"
            said = gear(state, keys, *asked, BAD, "--wheels", bad, code=1)
            assert "truck-1 went back to the program before" in said
            back = agent_of(state, keys)
            assert (back["version"], back["program"], back["state"]) == (GOOD, first["program"], "went back")
            assert (back["wanted_version"], bool(back["why"])) == (BAD, True)
            assert "went back" in gear(state, keys, "agent", "ls")
            gear(state, keys, *asked, "installed")
            last = agent_of(state, keys)
            assert (last["version"], last["program"], last["state"]) == (__version__, "", "as wanted")
            until_ended(client, "air")
            assert rows(client) == [(n, 1, 1, n + 1) for n in range(MORE)]
