"""Nothing is left out in silence: the shared conftest, run on small suites as a developer and as CI."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain_cloud.programs import WITHOUT
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

MARKERS = ("chromium", "postgres", "mosquitto", "spark")
ALL = {"chromium", "postgresql", "mosquitto"}
CONFIG = "[pytest]\nmarkers =\n" + "".join(f"    {marker}: x\n" for marker in MARKERS)
PASSES = "def test_passes():\n    assert True\n"
SKIPS = PASSES + "import pytest\ndef test_skips():\n    pytest.skip('no')\n"
SKIPS_WHOLE = "import pytest\npytest.skip('no', allow_module_level=True)\n"
EXPECTS_FAILURE = PASSES + "import pytest\n@pytest.mark.xfail\ndef test_fails():\n    assert False\n"
DRIVES_A_BROWSER = PASSES + "def test_page(chromium_path):\n    assert chromium_path\n"
DRIVES_ALL = """
import pytest
from tests.programs import mosquitto
@pytest.mark.mosquitto
def test_broker():
    assert mosquitto()
def test_page(chromium_path):
    assert chromium_path
@pytest.mark.postgres
def test_table():
    assert True
"""
FORGOT_ITS_MARKER = """
from tests.programs import mosquitto
def test_broker():
    assert mosquitto()
"""
ASKS_FOR_A_BROKER = "def test_any(broker_kind):\n    assert broker_kind in ('mosquitto', 'amqtt')\n"

SPARK = "spark: SparkSession"  # in two parts: this file itself needs no session
ASKS_FOR_SPARK = f"""
from __future__ import annotations
import os
import pytest
@pytest.fixture
def spark():
    return os.getpid()
@pytest.mark.parametrize("number", range(3))
def test_it({SPARK}, number):
    with open("processes", "a") as file:
        print(spark, file=file)
"""
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
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:asyncio",
            "-p",
            "no:schemathesis",
            "-p",
            "no:cacheprovider",
            "-q",
            *how,
        ],
        cwd=folder,
        env={"PATH": str(path), "PYTHONPATH": str(ROOT), WITHOUT: ",".join(ALL - set(programs))}
        | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


SKIPPING = {"test": SKIPS, "module": SKIPS_WHOLE + PASSES, "xfail": EXPECTS_FAILURE}


@pytest.mark.parametrize("kind", SKIPPING)
def test_skip_fails_the_run_in_ci(kind: str, tmp_path: Path) -> None:
    code, said = run(tmp_path, SKIPPING[kind], ci=True)
    assert code != 0
    assert "skipped, which CI does not allow: test_suite.py" in said


def test_skips_side_by_side_fail_the_run_in_ci_and_each_is_named(tmp_path: Path) -> None:
    for kind, suite in SKIPPING.items():
        (tmp_path / f"test_{kind}.py").write_text(suite)
    code, said = run(tmp_path, PASSES, ci=True, how=SIDE_BY_SIDE)
    assert (code != 0, " failed" in said, "error" in said) == (True, False, False), said
    (line,) = [line for line in said.splitlines() if "which CI does not allow: " in line]
    assert sorted(line.partition("allow: ")[2].split(", ")) == [
        "test_module.py",
        "test_test.py::test_skips",
        "test_xfail.py::test_fails",
    ]


def test_skip_is_let_through_elsewhere(tmp_path: Path) -> None:
    code, said = run(tmp_path, SKIPS, ci=False)
    assert (code, "1 passed, 1 skipped" in said) == (0, True), said


def test_run_without_skips_passes_in_ci(tmp_path: Path) -> None:
    code, said = run(tmp_path, DRIVES_A_BROWSER, ci=True, programs=("chromium",))
    assert (code, "2 passed" in said, "note:" in said) == (0, True, False), said


@both_ways
def test_one_line_says_what_was_left_out_and_what_installs_it(how: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, PASSES + DRIVES_ALL + ASKS_FOR_A_BROKER, ci=False, how=how)
    assert (code, "2 passed" in said) == (0, True), said
    (line,) = [line for line in said.splitlines() if line.startswith("note:")]
    assert line == (
        "note: left out: 3 tests (1 for mosquitto, 1 for postgres, 1 for chromium); "
        "1 test on amqtt in the place of mosquitto; to install: apt-get install mosquitto postgresql chromium"
    )


def test_what_takes_any_broker_runs_on_amqtt_and_the_line_says_so(tmp_path: Path) -> None:
    code, said = run(tmp_path, ASKS_FOR_A_BROKER + DRIVES_A_BROWSER, ci=False)
    assert (code, "2 passed" in said) == (0, True), said
    (line,) = [line for line in said.splitlines() if line.startswith("note:")]
    assert line == (
        "note: left out: 1 test (1 for chromium); 1 test on amqtt in the place of mosquitto; "
        "to install: apt-get install mosquitto chromium"
    )


@both_ways
def test_missing_program_fails_its_tests_in_ci(how: tuple[str, ...], tmp_path: Path) -> None:
    code, said = run(tmp_path, DRIVES_ALL + PASSES, ci=True, how=how)
    assert (code, "1 passed, 3 errors" in said, "note:" in said) == (1, True, False), said
    assert "mosquitto is not installed: apt-get install mosquitto" in said


@pytest.mark.parametrize("ci", [False, True])
def test_programs_that_are_there_are_driven(ci: bool, tmp_path: Path) -> None:
    suite, programs = DRIVES_ALL + ASKS_FOR_A_BROKER, ("mosquitto", "chromium", "initdb", "postgresql")
    code, said = run(tmp_path, suite, ci=ci, programs=programs)
    assert (code, "4 passed" in said, "note:" in said) == (0, True, False), said


def test_forgotten_marker_is_found_where_the_program_is(tmp_path: Path) -> None:
    code, said = run(tmp_path, FORGOT_ITS_MARKER, ci=False, programs=("mosquitto",))
    assert (code, "mark this test: @pytest.mark.mosquitto" in said) == (1, True), said


def test_files_that_share_sparks_session_run_in_one_process(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_more_{number}.py").write_text(ASKS_FOR_SPARK)
    code, said = run(tmp_path, PASSES, ci=False, how=SIDE_BY_SIDE)
    assert (code, "13 passed" in said) == (0, True), said
    processes = (tmp_path / "processes").read_text().split()
    assert (len(processes), len(set(processes))) == (12, 1)


def test_file_whose_share_in_sparks_session_cannot_be_seen_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, ASKS_FOR_SPARK.replace(SPARK, "spark"), ci=False)
    assert (code, f"write the parameter as `{SPARK}`" in said) == (4, True), said
