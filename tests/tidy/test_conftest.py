"""Nothing is left out in silence: the shared conftest, run on small suites as a developer and as CI."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

MARKERS = ("chromium: drives a browser", "postgres: starts a database", "spark: starts a Java")
CONFIG = "[pytest]\nmarkers =\n" + "".join(f"    {marker}\n" for marker in MARKERS)
PASSES = "def test_passes():\n    assert True\n"
SKIPS = PASSES + "import pytest\ndef test_skips():\n    pytest.skip('no')\n"
SKIPS_WHOLE = "import pytest\npytest.skip('no', allow_module_level=True)\n"
EXPECTS_FAILURE = PASSES + "import pytest\n@pytest.mark.xfail\ndef test_fails():\n    assert False\n"
DRIVES_A_BROWSER = PASSES + "def test_page(chromium_path):\n    assert chromium_path\n"
NO_SBIN = "import conftest\nconftest.SBIN = ()\n"
ASKS_FOR_THE_BROKER = "def test_broker(broker_kind):\n    assert broker_kind in ('mosquitto', 'amqtt')\n"


ALONE, SIDE_BY_SIDE = (), ("-n", "2", "--dist", "loadfile")
both_ways = pytest.mark.parametrize("how", [ALONE, SIDE_BY_SIDE], ids=["alone", "side_by_side"])


def run(
    folder: Path, suite: str, ci: bool, programs: tuple[str, ...] = (), how: tuple[str, ...] = ALONE
) -> tuple[int, str]:
    """Exit code and output of pytest on a suite, on a machine that has only these programs."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text(CONFIG)
    (folder / "test_suite.py").write_text(suite)
    path = folder / "programs"
    path.mkdir()
    for name in programs:
        (path / name).write_text("#!/bin/sh\n")
        (path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "-q", *how],
        cwd=folder,
        env={"PATH": str(path), "PYTHONPATH": str(ROOT)} | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@both_ways
@pytest.mark.parametrize(
    "suite", [SKIPS, SKIPS_WHOLE + PASSES, EXPECTS_FAILURE], ids=["test", "module", "xfail"]
)
def test_skip_fails_the_run_in_ci(suite: str, how: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, suite, ci=True, how=how)
    assert code != 0
    assert "skipped, which CI does not allow: test_suite.py" in said


def test_skip_is_let_through_elsewhere(tmp_path: Path) -> None:
    code, said = run(tmp_path, SKIPS, ci=False)
    assert (code, "1 passed, 1 skipped" in said) == (0, True), said


def test_run_without_skips_passes_in_ci(tmp_path: Path) -> None:
    code, said = run(tmp_path, DRIVES_A_BROWSER, ci=True, programs=("chromium",))
    assert (code, "2 passed" in said, "note:" in said) == (0, True, False), said


@both_ways
def test_missing_browser_is_said_and_its_tests_left_out(how: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, DRIVES_A_BROWSER, ci=False, how=how)
    assert (code, "1 passed" in said, said.count("note:")) == (0, True, 1), said
    assert "note: chromium is not installed: the tests of the pages (1) were left out." in said


def test_missing_browser_fails_the_run_in_ci(tmp_path: Path) -> None:
    code, said = run(tmp_path, DRIVES_A_BROWSER, ci=True)
    assert code != 0
    assert "no chromium was found" in said


@pytest.mark.parametrize("ci", [False, True])
def test_broker_is_mosquitto_where_there_is_one(ci: bool, tmp_path: Path) -> None:
    code, said = run(tmp_path, NO_SBIN + ASKS_FOR_THE_BROKER, ci=ci, programs=("mosquitto",))
    assert (code, "note:" in said) == (0, False), said


@pytest.mark.parametrize("ci", [False, True])
@both_ways
def test_broker_is_amqtt_elsewhere_and_the_run_says_so(
    ci: bool, how: tuple[str, ...], tmp_path: Path
) -> None:
    code, said = run(tmp_path, NO_SBIN + ASKS_FOR_THE_BROKER, ci=ci, how=how)
    assert (code, "note: mosquitto is not installed" in said) == (0, True), said
