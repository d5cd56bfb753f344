"""The code of a flow: which files belong to it, and what does not change its hash."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain.revision import Code, code_of

FILES = {
    "__init__.py": "",
    "flow.py": "from coldtest import tasks\nfrom .records import (  # an (odd) one\n    Reading,\n)\n",
    "tasks.py": "def late():\n    from coldtest.deep.math import add\nimport os, coldtest.plain as p\n",
    "records.py": "Reading = 1\n",
    "plain.py": "from . import \\\n    beside\n",
    "beside.py": "",
    "deep/__init__.py": "",
    "deep/math.py": "from ..records import Reading\nadd = 1\n",
    "deep/limits.json": '{"above": 30}',
    "thresholds.toml": "above = 30\n",
    "page.py": "import webbrowser\n",
    "data.csv": "1,2\n",
    "README.md": "# cold\n",
}
OURS = {"__init__.py", "flow.py", "tasks.py", "records.py", "plain.py", "beside.py", "deep/__init__.py"}
OURS |= {"deep/math.py", "deep/limits.json", "thresholds.toml"}


def forget(*names: str) -> None:
    """As a new process begins."""
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        path = folder / "coldtest" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def code_in(folder: Path, monkeypatch: pytest.MonkeyPatch, flow: str = "coldtest.flow:flow") -> Code:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        forget("coldtest", "alonetest", "besidetest")
        return code_of(flow)


def test_the_files_are_those_that_the_flow_imports_and_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_in(write(tmp_path), monkeypatch)
    assert code.package == "coldtest"
    assert set(code.files) == {f"coldtest/{name}" for name in OURS}
    assert not [name for name in sys.modules if name.startswith("coldtest")]  # nothing of the user's was run


def test_what_only_looks_like_an_import_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '''"""Docs:
import coldtest.page
"""
text = "#"; from coldtest import records
'''
    write(tmp_path, {"__init__.py": "", "flow.py": text, "records.py": "", "page.py": ""})
    assert set(code_in(tmp_path, monkeypatch).files) == {
        f"coldtest/{name}.py" for name in ("__init__", "flow", "records")
    }


def test_a_file_that_is_no_python_counts_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path, {"__init__.py": "", "flow.py": "from . import bad", "bad.py": "from . import (", "a.py": ""}
    )
    code = code_in(tmp_path, monkeypatch)
    assert set(code.files) == {f"coldtest/{name}.py" for name in ("__init__", "flow", "bad")}


def test_the_hash_does_not_depend_on_place_time_bytecode_or_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_in(write(tmp_path / "here"), monkeypatch)
    there = shutil.copytree(tmp_path / "here", tmp_path / "somewhere" / "else")
    for path in there.rglob("*.py"):
        os.utime(path, (1, 1))
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (there / "coldtest" / "__pycache__").mkdir()
    (there / "coldtest" / "__pycache__" / "flow.cpython-311.pyc").write_bytes(b"\0")
    (there / "coldtest" / ".hidden.json").write_text("1")
    for name in ("data.csv", "page.py", "README.md"):
        (there / "coldtest" / name).write_text("something else\n")
    again = code_in(there, monkeypatch)
    assert (again, again.hash) == (code, code.hash)


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_of_its_files_changes_the_hash(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_in(write(tmp_path / "a"), monkeypatch)
    changed = code_in(write(tmp_path / "b", FILES | {name: FILES[name] + " \n"}), monkeypatch)
    assert changed.hash != code.hash
    assert {n for n in code.files if code.files[n] != changed.files[n]} == {f"coldtest/{name}"}


def test_a_module_without_a_package_has_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alonetest.py").write_text("import json, besidetest\nimport msgspec\n")
    (tmp_path / "besidetest.py").write_text("")
    (tmp_path / "settings.json").write_text("1")
    code = code_in(tmp_path, monkeypatch, "alonetest:flow")
    assert set(code.files) == {"alonetest.py", "besidetest.py"}


def test_a_module_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flow in ("nowheretest:flow", "coldtest.nothing:flow", "coldtest.flow.flow:flow", ":flow"):
        with pytest.raises(ConfigError, match="there is no module"):
            code_in(write(tmp_path), monkeypatch, flow)
