"""An agent of the version before, installed from its wheels, beside a platform of today.

Before: the last commit whose devices took no program over the air. Its records have another order, so nothing
that it sends is taken, and it keeps all.
"""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from geartrain_client.signing.keys import new_author
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests.control.platform_client import client_of
from tests.packaging.environments import environment
from tests.proofs.test_open_platform import join, running
from tests.proofs.test_other_steps_over_the_air import open_for_a_day
from tests.proofs.test_over_the_air import gear, project
from tests.proofs.test_platform import until
from tests.supervisor.test_up import platform
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

BEFORE = "fda86be"
"""The commit."""
OF_AGENT = ("protocol", "devices", "edge")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before, out of the history that every clone has."""
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def begin(folder: Path) -> tuple[Path, Path, Path]:
    """An author's keys, a platform's folder and an empty one to run in."""
    nothing, keys, state = folder / "nothing", folder / "keys", folder / "state"
    nothing.mkdir()
    new_author(keys, "alice")
    open_for_a_day(state)
    return nothing, keys, state


def _refusing(status: Path) -> dict[str, int]:
    """The totals of ingest, once it has refused a batch of another version of the wire; empty before."""
    totals: dict[str, int] = read_report(status).get("counters", {})
    return totals if totals.get("other_wire_version", 0) else {}


def test_this_platform_takes_nothing_of_an_agent_of_the_version_before(
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
            gear(state, keys, "submit", str(project(tmp_path, 1)), "--no-wait")
            status = PlatformPlaces(state).ingest_status  # the ledger gets a refusal only with later data
            refused = until(lambda: _refusing(status), "batches that are refused")
            assert refused["records_logged"] == 0
            agent = until(lambda: client.get("/devices/truck-1")["agent"], "the agent")
            assert (agent["version"], agent["machine"], agent["state"]) == ("0.2.0", "", "as wanted")
            said = gear(
                *(state, keys, "agent", "upgrade", "--to", "0.3.0", "--devices", "all", "--no-wait"), code=2
            )
            assert "truck-1 runs an agent of version 0.2.0, which takes no program over the air yet" in said
