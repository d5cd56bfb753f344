"""A flow is loaded by its name, and whatever is wrong with the name or the module is one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow

GOOD = 'from geartrain import Flow\nflow = Flow("mine")\nnumber = 3\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory for modules, which are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    path, known = list(sys.path), set(sys.modules)
    sys.path[:] = [entry for entry in sys.path if entry]
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def mistake(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_flow(spec)
    said = str(caught.value)
    assert said.startswith(f"flow {spec!r}")
    assert "\n" not in said
    return said


def test_a_flow_is_found_in_the_working_directory(folder: Path) -> None:
    (folder / "gt_mine.py").write_text(GOOD)
    assert load_flow("gt_mine:flow").name == "mine"
    (folder / "gt_pack").mkdir()
    (folder / "gt_pack" / "inner.py").write_text(GOOD)
    assert load_flow("gt_pack.inner:flow").name == "mine"


@pytest.mark.parametrize(
    "spec", ["", "gt_mine", "gt_mine:", ":flow", "a-b:flow", "a/b.py:flow", "gt_mine:a.b", "..x:flow"]
)
def test_a_name_of_another_form_says_the_form(folder: Path, spec: str) -> None:
    assert "write module:name, such as my_flows.stocks:flow" in mistake(spec)


@pytest.mark.parametrize(
    ("text", "spec", "said"),
    [
        (GOOD, "gt_none:flow", "there is no module 'gt_none': install it or run in the folder"),
        (GOOD, "gt_mine.deeper:flow", "there is no module 'gt_mine.deeper'"),
        (GOOD, "gt_mine:other", "module gt_mine has no 'other': add other = Flow(\"...\") to it"),
        (GOOD, "gt_mine:number", "number is a int, not a Flow"),
        ("import gt_absent\n", "gt_mine:flow", "gt_mine imports 'gt_absent', which is not installed"),
        (
            "a = 1\nb = a / 0\n",
            "gt_mine:flow",
            "gt_mine.py, line 2): its module raised ZeroDivisionError: division",
        ),
        ("def :\n", "gt_mine:flow", "its module raised SyntaxError: invalid syntax (gt_mine.py, line 1)"),
        ("raise SystemExit('bye')\n", "gt_mine:flow", "its module raised SystemExit: bye"),
        (
            GOOD + "Flow('no good')\n",
            "gt_mine:flow",
            "gt_mine.py, line 4): step id 'no good': use a name of letters",
        ),
    ],
)
def test_what_is_wrong_with_a_module_is_said(folder: Path, text: str, spec: str, said: str) -> None:
    (folder / "gt_mine.py").write_text(text)
    assert said in mistake(spec)
