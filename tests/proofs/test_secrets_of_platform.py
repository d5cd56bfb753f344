"""A secret on its way: from `gear secret set` over a real broker to a joined device, whose app waits for it.

Real platform, mosquitto, Spark and signed code. A byte search looks for the values in all that is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.signing.folder import KEYS
from geartrain_client.signing.keys import new_author
from tests.control.platform_client import Client, client_of
from tests.proofs.test_open_platform import join, open_platform, running
from tests.proofs.test_platform import until
from tests.supervisor.test_up import pids, platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

FIRST, SECOND = "planted-7Vc3-first", "planted-1Xs6-second"
FLOW = (Path(__file__).parents[1] / "edge" / "secretive.py").read_text(encoding="utf-8")


def project(folder: Path) -> Path:
    package = folder / "project" / "secretive"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text('[tool.geartrain]\nflow = "secretive.flow:flow"\n')
    (package / "__init__.py").write_text("")
    (package / "flow.py").write_text(FLOW)
    return package.parent


def gear(state: Path, keys: Path, *arguments: str, value: str = "") -> str:
    """What `gear` prints; value: on its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_client.cli", *arguments, "--state", str(state)],
        env={**os.environ, KEYS: str(keys)},
        input=value,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=keys,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted-" not in done.stdout + done.stderr
    return done.stdout


def digests(client: Client) -> set[str]:
    status, page = client.ask("GET", "/apps/secretive/tables/digests")
    if status != 200:  # there is no table yet
        return set()
    return {row[page["columns"].index("digest")] for row in page["rows"]}


def applied(client: Client) -> tuple[int, int]:
    [one] = client.get("/secrets?app=secretive")["items"]
    return one["applied"], one["wanted"]


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def holding(*folders: Path) -> list[Path]:
    """The files, and the command lines and environments of processes, that have a value."""
    files = [one for folder in folders for one in folder.rglob("*") if one.is_file()]
    files += [one for one in Path("/proc").glob("[0-9]*/cmdline") if one.parent.name != str(os.getpid())]
    return [one for one in files if b"planted-" in read(one)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has gone meanwhile
        return b""


def test_a_secret_comes_after_the_start_is_rotated_and_is_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    monkeypatch.chdir(nothing)
    keys, state, devices = tmp_path / "keys", tmp_path / "state", tmp_path / "devices"
    new_author(keys, "alice")
    open_platform(state)
    with platform(state):
        client = client_of(state)
        files = [join(state, name, devices) for name in ("truck-1", "truck-2")]
        with running(files[0], nothing) as one, running(files[1], nothing):
            gear(state, keys, "submit", str(project(tmp_path)), "--no-wait")
            until(
                lambda: "waits for secret db_password" in json.dumps(client.get("/apps/secretive")),
                "it waits for its secret",
            )
            revision = client.get("/apps/secretive")["revision"]
            gear(state, keys, "secret", "set", "secretive", "db_password", value=FIRST + "\n")
            until(lambda: applied(client) == (2, 2), "both have the first value")
            until(lambda: digests(client) == {digest(FIRST)}, "rows with the first value")
            gear(state, keys, "secret", "set", "secretive", "db_password", value=SECOND)
            until(lambda: applied(client) == (2, 2), "both have the second value")
            places = [file.parent / "state" / "secrets" / "secretive" / "db_password" for file in files]
            until(lambda: [place.read_text() for place in places] == [SECOND, SECOND], "both files hold it")
            assert {place.stat().st_mode & 0o777 for place in places} == {0o600}
            assert client.get("/apps/secretive")["revision"] == revision
            until(lambda: reopened(files[0]), "its sources open again")
            told: list[Any] = [client.get(path) for path in ("/apps/secretive", "/audit", "/secrets")]
            told += [client.get("/apps/secretive/logs"), gear(state, keys, "info", "secretive")]
            assert "planted-" not in json.dumps(told)
            assert sorted(holding(state, devices, keys)) == sorted(places)
            assert one.poll() is None
            gear(state, keys, "secret", "rm", "secretive", "db_password")
            until(lambda: not any(place.exists() for place in places), "the secret goes")
        assert pids(state)
    assert holding(state, devices, keys) == []


def reopened(file: Path) -> bool:
    """Whether the app has noticed its new value."""
    log = file.parent / "state" / "secretive.1" / "agent.log"
    return "secret db_password has a new value" in log.read_text()
