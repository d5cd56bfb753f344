"""The parts of a device on each Python and machine that we name: everything that they need has a wheel."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.packaging.interpreters import ROOT, VERSIONS

MACHINES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
EDGE_PARTS = ("protocol", "devices", "edge")


def needed() -> list[str]:
    """What the parts of a device need from the index, with all extras."""
    found: set[str] = set()
    for part in EDGE_PARTS:
        project = tomllib.loads((ROOT / part / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found.update(project["dependencies"])
        for extra in project.get("optional-dependencies", {}).values():
            found.update(extra)
    return sorted(one for one in found if not one.startswith("geartrain"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_a_device_needs_has_wheels(version: str, machine: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-platform", machine, "--python-version", version, "--only-binary", ":all:"]
    command += ["--no-python-downloads"]
    wanted = needed()
    assert any(one.startswith("msgspec") for one in wanted)
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pinned = {line.split("==")[0] for line in done.stdout.splitlines() if "==" in line}
    assert {"msgspec", "protobuf", "aiomqtt", "paho-mqtt"} <= pinned
