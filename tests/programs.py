"""Programs that some tests drive: how each is found, what installs it, and which tests were left out for it.

A test says by a marker of the program's name that it needs it. Guarantees: where a program is missing, its
tests are left out and one line says so, or under CI=true each of them fails; a test that starts a program
without its marker fails everywhere, so that it is noticed on a machine that has everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from geartrain_client.flash.target import PYTHONS
from geartrain_cloud.broker import find_mosquitto
from geartrain_cloud.programs import SBIN, find_program, is_hidden

IN_CI = os.environ.get("CI") == "true"


def find_chromium() -> str | None:
    """The browser's program; CHROMIUM may name it."""
    if is_hidden("chromium"):
        return None
    names = ("chromium", "chromium-browser", "google-chrome")
    named = shutil.which(os.environ.get("CHROMIUM", ""))
    return named or next((path for name in names if (path := find_program(name))), None)


def find_initdb() -> str | None:
    """PostgreSQL's `initdb`, beside which its other programs lie (Debian puts them off PATH)."""
    if is_hidden("postgresql"):
        return None
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin_: bin_.parent.name)
    found = find_program("initdb", [str(bin_) for bin_ in reversed(versions)])
    return str(Path(found).resolve()) if found else None


def find_mtools() -> str | None:
    """mtools, with `mkfs.vfat` beside them, which makes the file systems that they work on."""
    made = find_program("mkfs.vfat", SBIN)
    return find_program("mcopy") if made else None


SYSTEM_PYTHON = "/usr/bin/python3"


def system_python() -> str | None:
    """The version of the system's Python, such as `3.11`; None where there is none."""
    asked = [SYSTEM_PYTHON, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def find_namespaces() -> str | None:
    """`unshare`, where it may give a process mounts and a network of its own, which needs root.

    What is tested there is an installation, which the system's Python is needed for.
    """
    unshare = find_program("unshare")
    if unshare is None or os.geteuid() != 0 or system_python() not in PYTHONS:
        return None
    tried = subprocess.run([unshare, "--mount", "--net", "true"], check=False, capture_output=True)
    return unshare if tried.returncode == 0 else None


@dataclass(frozen=True)
class Needed:
    """A program that tests drive. `marker`: of these tests; `fixture`: a test that asks for it is marked."""

    marker: str
    package: str
    find: Callable[[], str | None]
    fixture: str = ""

    def is_needed_by(self, item: pytest.Item) -> bool:
        """Whether the test drives it."""
        return item.get_closest_marker(self.marker) is not None


MOSQUITTO = Needed("mosquitto", "mosquitto", find_mosquitto)
PROGRAMS = (
    MOSQUITTO,
    Needed("postgres", "postgresql", find_initdb, "postgres"),
    Needed("chromium", "chromium", find_chromium, "chromium_path"),
    Needed("systemd", "systemd", lambda: find_program("systemd-analyze")),
    Needed("mtools", "mtools dosfstools", find_mtools),
    Needed("shellcheck", "shellcheck", lambda: find_program("shellcheck")),
    Needed("namespaces", "util-linux python3", cache(find_namespaces)),
)

_markers: list[set[str] | None] = [None]
"""The markers of the test that runs; None outside of a test."""


def begin(item: pytest.Item) -> None:
    """Note the test that begins; under CI=true it fails at once if a program that it drives is missing."""
    _markers[0] = {marker.name for marker in item.iter_markers()}
    for program in PROGRAMS:
        if program.is_needed_by(item) and program.find() is None:
            pytest.fail(
                f"{program.marker} is not installed: apt-get install {program.package}", pytrace=False
            )


def mosquitto() -> str:
    """The program that a test or a fault's scenario is about to start."""
    path = find_mosquitto()
    assert path, "mosquitto is not installed: apt-get install mosquitto"
    assert _markers[0] is None or "mosquitto" in _markers[0], "mark this test: @pytest.mark.mosquitto"
    return path


def leave_out(items: list[pytest.Item]) -> tuple[list[pytest.Item], str]:
    """Take the tests whose programs are missing out of `items`; returns them, and one line that says so."""
    missing = [program for program in PROGRAMS if program.find() is None]
    left_out = [item for item in items if any(program.is_needed_by(item) for program in missing)]
    counts = {program: sum(map(program.is_needed_by, left_out)) for program in missing}
    items[:] = [item for item in items if item not in left_out]
    on_amqtt = [item for item in items if "broker_kind" in getattr(item, "fixturenames", ())]
    said, wanted = [], [program for program, count in counts.items() if count]
    if wanted:
        each = ", ".join(f"{counts[program]} for {program.marker}" for program in wanted)
        said.append(f"left out: {_tests(len(left_out))} ({each})")
    if on_amqtt and MOSQUITTO in missing:
        said.append(f"{_tests(len(on_amqtt))} on amqtt in the place of mosquitto")
        wanted = [MOSQUITTO, *(program for program in wanted if program is not MOSQUITTO)]
    packages = " ".join(program.package for program in wanted)
    return left_out, f"{'; '.join(said)}; to install: apt-get install {packages}" if said else ""


def _tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"
