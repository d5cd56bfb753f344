"""The examples in the docs and docstrings run, and say what they say."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import geartrain

ROOT = Path(__file__).parents[2]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def _modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(geartrain.__path__, "geartrain.")
    return [importlib.import_module(m.name) for m in found if not m.name.endswith("_pb2")]


def test_the_examples_of_all_docstrings_hold() -> None:
    attempted = 0
    for module in _modules():
        results = doctest.testmod(module)
        assert results.failed == 0, module.__name__
        attempted += results.attempted
    assert attempted >= 10


def test_the_pages_of_reference_are_what_the_docstrings_say() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate-reference"), "--print"]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {path.name for path in (ROOT / "docs" / "reference").iterdir()} == {
        Path(page).name for page in made if page.startswith("reference/")
    }
    for page, text in made.items():
        assert text == (ROOT / "docs" / page).read_text(encoding="utf-8"), "run scripts/generate-reference"
    verbs = re.split(r"^### ", made["operators.md"], flags=re.MULTILINE)[1:]
    assert len(verbs) > 40
    assert sum(">>>" in verb for verb in verbs) > 30


def test_the_picture_of_a_devices_path_is_what_its_script_draws() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "draw-device-path"), "--print"]
    drawn = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert drawn == (ROOT / "docs" / "device_path.svg").read_text(), "run scripts/draw-device-path"


def test_the_flow_of_the_readme_runs_as_it_says(tmp_path: Path) -> None:
    (block,) = PYTHON_BLOCK.findall((ROOT / "README.md").read_text())
    assert len([line for line in block.splitlines() if line.strip()]) <= 20
    (tmp_path / "heat.py").write_text(block)
    rows = [
        "time,sensor,celsius",
        "2026-01-01T00:00:00Z,a,20.5",
        "2026-01-01T00:01:00Z,a,19",
        "2026-01-01,b,3",
    ]
    (tmp_path / "heat.csv").write_text("\n".join(rows) + "\n")
    gear = [str(Path(sys.executable).with_name("gear")), "run", "heat:flow", "--output", "out"]
    subprocess.run([*gear, "--set", "readings.path=heat.csv"], cwd=tmp_path, check=True, env=dict(os.environ))
    assert (tmp_path / "out" / "highs.json").read_text() == (
        '[\n {\n  "sensor": "a",\n  "celsius": 20.5\n },\n {\n  "sensor": "b",\n  "celsius": 3.0\n }\n]\n'
    )


RUN = (
    "concepts",
    "sinks",
    "sources",
    *sorted(f"sources/{page.stem}" for page in (ROOT / "docs" / "sources").glob("*.md")),
    "testing",
)
"""The pages whose examples are all run."""


@pytest.mark.parametrize("page", RUN)
def test_every_example_of_a_page_runs_as_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is a file that begins with its name, a session, or commands; they share a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    try:
        _check_page(page, tmp_path)
    finally:
        for module in set(sys.modules) - before:
            if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[module]


def _check_page(page: str, folder: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for language, block in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        if language == "console":
            _run_commands(block, folder)
        elif found := FILE.match(block):
            (folder / found[1]).write_text(block, encoding="utf-8")
            importlib.invalidate_caches()
            importlib.import_module(found[1].removesuffix(".py"))
        else:
            examples = doctest.DocTestParser().get_doctest(block, names, page, page, None)
            assert examples.examples, f"docs/{page}.md has a block that nothing runs:\n{block}"
            said: list[str] = []
            doctest.DocTestRunner(verbose=False).run(examples, out=said.append, clear_globs=False)
            assert not said, "".join(said)
            names = examples.globs


def _run_commands(block: str, folder: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in block.splitlines():
        if line.startswith("$ "):
            subprocess.run(shlex.split(line[2:]), cwd=folder, check=True, env=environment)


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    broken = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert broken == []
