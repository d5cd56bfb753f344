"""What `make dist` builds, as users get it: the same bytes wherever it is built, and the README's chapter on
the platform runs from it in an environment of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.readme_chapter import run_chapter
from tests.packaging.environments import environment
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PARTS = ("protocol", "devices", "edge", "client", "cloud", "simulation", "examples")
BUILT_AGAIN = ("protocol", "cloud")
"""Each build of a part takes seconds."""
OF_PLATFORM = ("geartrain", "geartrain_devices", "geartrain_edge", "geartrain_client", "geartrain_cloud")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def build(sources: Path, output: Path, *parts: str) -> Path:
    """Wheels and sdists of these parts, of all where none is named."""
    variables = os.environ | {"PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "1767225600"}
    command = [str(sources / "scripts" / "dist"), str(output), *parts]
    subprocess.run(command, env=variables, check=True, timeout=WAIT_S)
    return output


def archives(folder: Path) -> list[str]:
    """The names of the wheels and sdists in a folder."""
    return sorted(path.name for path in folder.glob("*.*") if path.suffix in (".whl", ".gz"))


def test_the_same_sources_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    sources = tmp_path / "elsewhere"
    for folder in (*PARTS, "scripts"):
        shutil.copytree(ROOT / folder, sources / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", sources)  # what a build leaves out
    former = os.umask(0o077)
    try:
        again = build(sources, tmp_path / "dist", *BUILT_AGAIN)
    finally:
        os.umask(former)
    assert len(archives(built)) == 2 * len(PARTS)
    names = archives(again)
    assert len(names) == 2 * len(BUILT_AGAIN)
    assert [name for name in names if (built / name).read_bytes() != (again / name).read_bytes()] == []


def test_the_readmes_chapter_runs_from_wheels(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # a Spark session in this process names our sources there
    wheels = [str(wheel) for part in OF_PLATFORM for wheel in built.glob(f"{part}-*.whl")]
    assert len(wheels) == len(OF_PLATFORM)
    python = environment(tmp_path / "venv", *wheels)
    shown = [str(python), "-c", "import geartrain_cloud; print(geartrain_cloud.__file__)"]
    said = subprocess.run(shown, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said.startswith(str(tmp_path))
    run_chapter(tmp_path, python.parent)
