"""What the environment lacks is one sentence of `gear` that says what to set, before anything starts."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from geartrain_client.cli import main
from geartrain_cloud.cli.doctor import run_checks

FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    celsius: float


flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time", path="readings.csv"), out=Reading)
readings.sink("all", Table("readings"))
"""
NO_HOME = "gear: this user has no home folder: HOME is not set, and the system has no entry of the user; set "


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry, as containers have them, and without HOME."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in (
        "HOME",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "GEARTRAIN_STATE",
        "GEARTRAIN_URL",
        "GEARTRAIN_KEYS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["list"], "--state or GEARTRAIN_STATE"),
        (["up"], "--state or GEARTRAIN_STATE"),
        (["key", "ls"], "GEARTRAIN_KEYS"),
    ],
)
def test_a_user_without_a_home_is_told_what_to_set(
    capsys: pytest.CaptureFixture[str], arguments: list[str], instead: str
) -> None:
    assert main(arguments) == 2
    assert " ".join(capsys.readouterr().err.split()) == NO_HOME + instead


@pytest.mark.usefixtures("nobody")
def test_a_user_without_an_entry_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--state", str(tmp_path / "state")]) == 2
    assert "to /etc/passwd" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "state" / "logs").exists()
    (java,) = (check for check in run_checks(tmp_path) if check.name == "java")
    assert not java.ok
    assert "has none: add a line for" in java.found


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system on which no folder for temporary files can be written."""

    def refuse() -> NoReturn:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["up", "--state", "state"], ""),
        (["demo", "stocks"], ""),
        (["run", "heat_without_folder:flow"], "--output DIR"),
    ],
)
def test_where_no_temporary_file_can_be_written_the_sentence_says_what_to_set(
    arguments: list[str],
    instead: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "heat_without_folder.py").write_text(FLOW, encoding="utf-8")
    (tmp_path / "readings.csv").write_text("time,celsius\n2026-01-01,1\n", encoding="utf-8")
    assert main(arguments) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "gear: no folder for temporary files can be written" in said
    assert "set TMPDIR to one that can be written" in said
    assert said.endswith(instead or "written")
    checks = {check.name: check for check in run_checks(None)}
    assert (checks["temp"].ok, "disk" in checks) == (False, False)


def test_doctor_says_where_no_state_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEARTRAIN_STATE", str(tmp_path / "a" / "b"))
    state = next(check for check in run_checks(tmp_path) if check.name == "state")
    assert (state.ok, str(tmp_path / "a" / "b") in state.found) == (True, True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    state = next(check for check in run_checks(tmp_path) if check.name == "state")
    assert not state.ok
    assert state.found.startswith(f"{tmp_path} cannot be written, where the platform's state would lie: set ")


def test_a_folder_from_which_no_library_may_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mounted = os.statvfs(tmp_path)
    parts = [*mounted[:8], mounted.f_flag | os.ST_NOEXEC, *mounted[9:]]
    monkeypatch.setattr("os.statvfs", lambda path: os.statvfs_result(parts))
    assert main(["up", "--state", str(tmp_path / "state")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(
        "which is mounted with noexec: set TMPDIR to a folder that is not, or mount it with exec"
    )
    check = next(one for one in run_checks(tmp_path) if one.name == "temp")
    assert (check.ok, "noexec" in check.found) == (False, True)
    assert not (tmp_path / "state" / "logs").exists()
