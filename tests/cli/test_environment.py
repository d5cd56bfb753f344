"""What the environment lacks is one sentence of `gear` that says what to set, before anything starts."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from geartrain_client.cli import main
from geartrain_cloud.cli.doctor import run_checks

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
