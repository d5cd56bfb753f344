"""Two versions of one package in one process: each flow's code finds the modules of its own version."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain_cloud.hosting.code import Bookcase, keep_bundle
from geartrain_cloud.hosting.errors import HostError

KEEP = """
import importlib, json, sys
from pathlib import Path
from geartrain_cloud.hosting.code import keep, user_packages
before = frozenset(sys.modules)
importlib.import_module("grain.flow")
print(json.dumps(keep(Path(sys.argv[1]), user_packages("grain.flow", before))))
"""


def kept(folder: Path, text: str) -> dict[str, str]:
    """The package `grain` with this in its module, kept by a process that ends."""
    (folder / "src" / "grain").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "chaff.py").write_text("SAYS = 'beside'\n")
    (folder / "src" / "grain" / "__init__.py").write_text("")
    (folder / "src" / "grain" / "words.py").write_text(text)
    (folder / "src" / "grain" / "flow.py").write_text(
        "import json\nimport chaff\nfrom grain.words import SAYS\n"
        "def say():\n    from grain import later\n    return SAYS, later.SAYS, chaff.SAYS\n"
    )
    (folder / "src" / "grain" / "later.py").write_text(text.replace("SAYS = ", "SAYS = 'later ' + "))
    done = subprocess.run(
        [sys.executable, "-c", KEEP, str(folder / "code")],
        env={"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_two_versions_of_a_package_never_meet(tmp_path: Path) -> None:
    one, two = kept(tmp_path, "SAYS = 'one'\n"), kept(tmp_path, "SAYS = 'two'\n")
    assert sorted(one) == sorted(two) == ["chaff", "grain"]
    assert one["grain"] != two["grain"]
    assert one["chaff"] == two["chaff"]
    assert kept(tmp_path, "SAYS = 'one'\n") == one  # by content
    bookcase, said = Bookcase(tmp_path / "code"), {}
    for name, code in (("one", one), ("two", two)):
        with bookcase.use(code):
            said[name] = importlib.import_module("grain.flow").say
    assert not any(module.partition(".")[0] in ("grain", "chaff") for module in sys.modules)
    assert not any(str(tmp_path) in path for path in sys.path)
    for name, code in (("two", two), ("one", one), ("two", two)):
        with bookcase.use(code):  # what a function imports when it runs is of its version, too
            assert said[name]() == (name, f"later {name}", "beside")


def test_code_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the code of package grain is missing at"):  # noqa: SIM117
        with Bookcase(tmp_path).use({"grain": "0" * 64}):
            pass


def test_what_python_has_compiled_is_no_package_of_a_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    for folder in (bundle / "grain", bundle / "grain" / "__pycache__", bundle / "__pycache__"):
        folder.mkdir(parents=True)
        (folder / "old.cpython-311.pyc").write_bytes(b"bytecode")
    (bundle / "chaff.py").write_text("SAYS = 'beside'\n")
    (bundle / "grain" / "flow.py").write_text("import chaff\n")
    assert sorted(keep_bundle(tmp_path / "code", bundle)) == ["chaff", "grain"]


def test_nothing_is_written_into_a_bundle_that_is_imported_from(tmp_path: Path) -> None:
    (tmp_path / "chaff.py").write_text("SAYS = 'of the bundle'\n")
    program = (
        "import sys; from geartrain_cloud.bundles.importing import import_from; "
        "import_from(sys.argv[1]); import chaff; print(chaff.SAYS)"
    )
    environment = {name: os.environ[name] for name in os.environ.keys() - {"PYTHONDONTWRITEBYTECODE"}}
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (said, [path.name for path in tmp_path.iterdir()]) == ("of the bundle\n", ["chaff.py"])
