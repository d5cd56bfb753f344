"""`gear new`: what it makes runs as it is, and is what a linter and a type checker like."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain.errors import ConfigError, MistakeError
from geartrain_client.cli.new_project import new_project
from tests.docs.readme_chapter import minutes
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

TOOLS = Path(sys.executable).parent


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]],
        cwd=folder,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    said = run(folder, "gear", "new", "cold-chain")
    assert said.startswith("made cold-chain: a flow, its test, and a sample of data\n  cd cold-chain\n")
    return folder / "cold-chain"


def test_its_own_test_passes(made: Path) -> None:
    assert "3 passed" in run(made, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_comments_of_its_readme_stand_below_each_other(made: Path) -> None:
    lines = (made / "README.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith(("gear ", "python "))]
    assert len(commands) == 8
    assert len({line.index("# ") for line in commands}) == 1


def test_its_flow_finds_what_is_in_the_sample(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(made, "gear", "run", ".", "--set", "readings.path=data/readings.csv", "--output", str(out))
    rows = json.loads((out / "minutes.json").read_text())
    found = {
        (row["sensor"], row["window_start"]): (row["readings"], row["mean"], row["highest"]) for row in rows
    }
    wanted = minutes(made / "data" / "readings.csv")
    assert found == wanted
    hot = {(row["sensor"], row["window_start"]) for row in json.loads((out / "hot.json").read_text())}
    assert hot == {place for place, (_, _, highest) in wanted.items() if highest > 60.0}
    with (made / "data" / "readings.csv").open() as file:
        assert sum(float(row["celsius"]) == -127.0 for row in csv.DictReader(file)) == 6


def test_a_linter_and_a_type_checker_take_it(made: Path) -> None:
    style = ("--isolated", "--line-length", "110")
    assert "All checks passed" in run(made, "ruff", "check", *style, "--select", "E,F,I,UP,W", ".")
    assert "already formatted" in run(made, "ruff", "format", *style, "--check", ".")
    assert "no issues found" in run(
        made, "mypy", "--strict", "--cache-dir", os.devnull, "cold_chain", "tests"
    )


def test_the_picture_in_the_readme_is_that_of_the_flow(tmp_path: Path) -> None:
    run(tmp_path, "gear", "new", "heat")
    run(tmp_path / "heat", "gear", "plan", ".", "--svg", "plan.svg")
    drawn = (tmp_path / "heat" / "plan.svg").read_text()
    assert drawn == (ROOT / "docs" / "plan_new.svg").read_text(), "gear new heat; gear plan heat --svg ..."


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "flow.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("mine", "file", "link"):
        with pytest.raises(ConfigError, match="is there already: name a new folder"):
            new_project(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be written"):
        new_project(tmp_path / "file" / "below")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "flow.py", "link", "mine"]
    (tmp_path / "empty").mkdir()
    new_project(tmp_path / "empty")
    assert (tmp_path / "empty" / "empty" / "flow.py").is_file()


@pytest.mark.parametrize("name", ["json", "class", "tests", "geartrain"])
def test_a_name_that_another_package_has_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MistakeError, match=f"{name} is the name of another Python package"):
        new_project(tmp_path / name)


@pytest.mark.parametrize("name", ["Cold", "1st", "a b", "a--b", "-a", "ä", "a" * 41, ".."])
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MistakeError, match="a project is called by a small letter"):
        new_project(tmp_path / name)
    assert not list(tmp_path.iterdir())
