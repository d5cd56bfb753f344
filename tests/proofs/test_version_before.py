"""Platform and agents of the version before, installed from its wheels, beside those of today.

Before: the last commit whose devices took no program over the air. A flow goes over the air both ways, and
its tables equal plain Python.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from geartrain_client.signing.keys import new_author
from tests.control.platform_client import client_of
from tests.packaging.environments import environment, install
from tests.proofs.test_open_platform import join, open_platform, running
from tests.proofs.test_over_the_air import ITEMS, gear, project, rows
from tests.proofs.test_platform import until, until_ended
from tests.supervisor.test_up import platform
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

BEFORE = "fda86be"
"""The commit."""
OF_AGENT, OF_PLATFORM = ("protocol", "devices", "edge"), ("protocol", "devices", "edge", "client", "cloud")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before, out of the history that every clone has."""
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


@contextmanager
def importing(folder: Path) -> Iterator[None]:
    """What is started within imports from the folder first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


def begin(folder: Path) -> tuple[Path, Path, Path]:
    """An author's keys, a platform's folder and an empty one to run in."""
    nothing, keys, state = folder / "nothing", folder / "keys", folder / "state"
    nothing.mkdir()
    new_author(keys, "alice")
    open_platform(state)
    return nothing, keys, state


def test_this_agent_joins_a_platform_of_the_version_before(tmp_path: Path, tree: Path) -> None:
    installed = tmp_path / "installed"
    parts = [str(tree / part) for part in OF_PLATFORM]
    install("--no-deps", "--target", str(installed), *parts)
    nothing, keys, state = begin(tmp_path)
    with ExitStack() as stack:
        with importing(installed):
            asked = [sys.executable, "-c", "import geartrain_cloud; print(geartrain_cloud.__file__)"]
            found = subprocess.run(asked, capture_output=True, check=True, text=True).stdout
            assert found.startswith(str(installed))
            stack.enter_context(platform(state))
        client = replace(client_of(state), is_of_today=False)
        device = join(state, "truck-1", tmp_path / "devices")
        with running(device, nothing):
            with importing(installed):
                gear(state, keys, "submit", str(project(tmp_path, 1)))
            until_ended(client, "air")
            assert rows(client) == [(n, 1, 1, n + 1) for n in range(ITEMS)]
            assert "agent" not in client.get("/devices/truck-1")  # it is the one of before that answers


def test_this_platform_serves_an_agent_of_the_version_before(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # what is installed is tried
    parts = [str(tree / part) for part in OF_AGENT]
    python = str(environment(tmp_path / "venv", *parts[:-1], f"{parts[-1]}[fleet]"))
    nothing, keys, state = begin(tmp_path)
    with platform(state):
        client = client_of(state)
        device = join(state, "truck-1", tmp_path / "devices", python)
        with running(device, nothing, python):
            gear(state, keys, "submit", str(project(tmp_path, 1)))
            until_ended(client, "air")
            assert rows(client) == [(n, 1, 1, n + 1) for n in range(ITEMS)]
            agent = until(lambda: client.get("/devices/truck-1")["agent"], "the agent")
            assert (agent["version"], agent["machine"], agent["state"]) == ("0.2.0", "", "as wanted")
            said = gear(
                *(state, keys, "agent", "upgrade", "--to", "0.3.0", "--devices", "all", "--no-wait"), code=2
            )
            assert "truck-1 runs an agent of version 0.2.0, which takes no program over the air yet" in said
