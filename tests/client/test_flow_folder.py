"""`gear submit FOLDER`: the flow that a project names, or its only one; otherwise one sentence."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.revision import code_of
from geartrain_client.flow_folder import flow_of

FLOW = 'from geartrain import Flow\n{} = Flow("{}")\n'


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_project", "other")]:
        del sys.modules[name]


def project(folder: Path, toml: str, **modules: str) -> str:
    """A project with these modules by their paths, dots for slashes."""
    (folder / "pyproject.toml").write_text(toml)
    for name, text in modules.items():
        path = folder / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return str(folder)


def test_the_flow_is_the_one_that_the_project_names(tmp_path: Path) -> None:
    toml = '[tool.geartrain]\nflow = "my_project.heat:flow"\n'
    folder = project(
        tmp_path, toml, my_project__in__heat=FLOW.format("flow", "heat"), my_project__in__bad="1/0"
    )
    assert flow_of(folder) == flow_of(folder, loads=False) == "my_project.heat:flow"
    assert load_flow("my_project.heat:flow").name == "heat"
    assert "my_project/heat.py" in code_of("my_project.heat:flow").files


def test_the_only_flow_of_its_package_is_found_where_it_is_made(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        '[project]\nname = "my-project"\n',
        src__in__my_project__in__deep=FLOW.format("cold", "cold"),
        src__in__my_project__in__page="from my_project.deep import cold as again\n",
        src__in__other__in__flows=FLOW.format("flow", "other"),
    )
    (tmp_path / "src" / "my_project" / "__init__.py").write_text("from my_project.deep import cold\n")
    assert flow_of(folder) == "my_project.deep:cold"


@pytest.mark.parametrize(
    ("toml", "text", "sentence"),
    [
        (
            "",
            FLOW.format("a", "a") + 'b = Flow("b")\n',
            r"it has 2 flows \(my_project.m:a, my_project.m:b\): name",
        ),
        ("", "a = 1\n", r"it has no flow: name it in pyproject.toml: \[tool.geartrain\] flow = "),
        ("", "import nowhere_at_all\n", "imports 'nowhere_at_all', which is not installed"),
        ("[tool.geartrain]\nflow = 3\n", "", r"\[tool.geartrain\] flow: expected str, got int"),
        ("[tool", "", "pyproject.toml"),
    ],
)
def test_what_is_missing_or_too_much_is_one_sentence(
    toml: str, text: str, sentence: str, tmp_path: Path
) -> None:
    folder = project(tmp_path, toml, my_project__in__m=text)
    with pytest.raises(ConfigError, match=sentence):
        flow_of(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: there is no such folder: give MODULE:FLOW"):
        flow_of(str(tmp_path / "nowhere"))
    (tmp_path / "heat.py").touch()
    with pytest.raises(ConfigError, match=r"heat.py: that is a file: give MODULE:FLOW"):
        flow_of(str(tmp_path / "heat.py"))


def test_a_folder_that_is_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no pyproject.toml: give MODULE:FLOW"):
        flow_of(str(tmp_path))
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(ConfigError, match=r"it has no package, and none of the project's name: name it"):
        flow_of(str(tmp_path))
    with pytest.raises(ConfigError, match="--unchecked loads nothing to find its flow: name it"):
        flow_of(str(tmp_path), loads=False)


def test_anything_else_is_the_flows_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert flow_of("my_flow:flow") == "my_flow:flow"
    assert flow_of("nothing_here") == "nothing_here"
