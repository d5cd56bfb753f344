"""The units of systemd are sound, their sandbox is as tight as promised, a drop-in grants one device."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

UNITS = ROOT / "deploy" / "systemd"
DEVICE = sorted((UNITS / "device").glob("*.service"))
PLATFORM = sorted((UNITS / "platform").glob("*.service"))
DROP_INS = sorted((UNITS / "device" / "examples").glob("*.conf"))


def analyze(*words: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exposure(root: Path, unit: str) -> float:
    said = analyze("security", "--offline=true", f"--root={root}", unit)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+) ", said)
    assert found, said
    return float(found[1])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root in which every unit is installed, with the programs that they run."""
    system = tmp_path / "etc" / "systemd" / "system"
    system.mkdir(parents=True)
    for unit in (*DEVICE, *PLATFORM):
        shutil.copy(unit, system)
        for program in re.findall(r"^ExecStart=(/\S+)", unit.read_text(encoding="utf-8"), re.MULTILINE):
            path = tmp_path / program[1:]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n", encoding="ascii")
            path.chmod(0o755)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "usr/bin").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "usr/bin/systemctl")
    return tmp_path


@pytest.mark.systemd
def test_every_unit_is_sound(root: Path) -> None:
    names = [unit.name for unit in (*DEVICE, *PLATFORM)]
    assert {"geartrain-agent.service", "geartrain-join.service", "geartrain-up.service"} <= set(names)
    said = analyze("verify", "--recursive-errors=no", f"--root={root}", *names)
    assert "geartrain" not in said


@pytest.mark.systemd
@pytest.mark.parametrize("unit", DEVICE, ids=lambda unit: unit.stem)
def test_a_unit_without_devices_is_below_two(root: Path, unit: Path) -> None:
    assert exposure(root, unit.name) < 2.0


@pytest.mark.systemd
@pytest.mark.parametrize("unit", PLATFORM, ids=lambda unit: unit.stem)
def test_a_unit_of_the_platform_is_below_two(root: Path, unit: Path) -> None:
    assert exposure(root, unit.name) < 2.0


@pytest.mark.systemd
@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda drop_in: drop_in.stem)
def test_a_drop_in_grants_its_device_alone(root: Path, drop_in: Path) -> None:
    folder = root / "etc/systemd/system/geartrain-agent.service.d"
    folder.mkdir()
    shutil.copy(drop_in, folder)
    assert exposure(root, "geartrain-agent.service") < 3.5
    grants = re.findall(r"^DeviceAllow=(.*)$", drop_in.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(grants) == 1
    assert "DevicePolicy=closed" in (UNITS / "device" / "geartrain-agent.service").read_text(encoding="utf-8")


def test_the_examples_are_for_a_serial_line_a_camera_and_pins() -> None:
    assert {"serial", "camera", "gpio"} <= {drop_in.stem for drop_in in DROP_INS}


@pytest.mark.parametrize("unit", [*DEVICE, *PLATFORM], ids=lambda unit: unit.stem)
def test_a_unit_that_stays_is_watched(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    if "Type=oneshot" in text:
        return
    assert re.search(r"^Type=notify$", text, re.MULTILINE)
    assert re.search(r"^WatchdogSec=[1-9]", text, re.MULTILINE)
    assert re.search(r"^Restart=always$", text, re.MULTILINE)
