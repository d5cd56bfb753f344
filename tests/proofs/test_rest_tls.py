"""A platform of `gear up` whose REST speaks TLS, driven by `gear` with the folder of another machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import client_of
from tests.ports import free_port
from tests.supervisor.test_up import platform
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]


def gear(folder: Path, told: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """`gear` where nothing of the platform is but what `told` names."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEARTRAIN_")}
    command = [sys.executable, "-m", "geartrain_client.cli", *words]
    return subprocess.run(
        command,
        env=environment | {"HOME": str(folder)} | told,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_another_machine_drives_a_platform_over_https(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir(mode=0o700)
    elsewhere.mkdir(mode=0o700)
    (state / "platform.toml").write_text(
        f'[control]\nhost = "0.0.0.0"\nport = {free_port()}\ntls = true\n[fleet]\naddress = "localhost"\n'
        f"mqtt_port = {free_port()}\ndevice_port = {free_port()}\n"
    )
    with platform(state):
        url = client_of(state).url
        shutil.copy(state / "fleet" / "ca.pem", elsewhere / "ca.pem")
        shutil.copy(PlatformPlaces(state).token, elsewhere / "token")
        told = {"GEARTRAIN_URL": url, "GEARTRAIN_TOKEN_FILE": "token"}
        trusting = told | {"GEARTRAIN_CA": "ca.pem"}
        added = gear(elsewhere, trusting, "device", "add", "hall", "--json")
        assert added.returncode == 0, added.stderr
        found = gear(elsewhere, trusting, "status", "--json")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["url"] == url
        own = gear(state, {}, "device", "ls", "--state", str(state), "--json")
        assert "hall" in own.stdout, own.stderr
        without = gear(elsewhere, told, "status")
        assert without.returncode != 0
        assert "not trusted here" in without.stderr
        in_clear = gear(elsewhere, trusting | {"GEARTRAIN_URL": "http://192.0.2.1:8764"}, "status")
        assert in_clear.returncode == 2
        assert "is not encrypted" in in_clear.stderr
        assert "Traceback" not in without.stderr + in_clear.stderr
