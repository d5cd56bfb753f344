"""Imports that go up are found, and the page of the architecture shows the map as it is.

That the tree keeps the map is asked in test_tree.py, which has read all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.packages import LAYERS, layers_of, wrong_imports
from tests.tidy.source import ROOT, Source

TREE = {
    "geartrain_edge/__init__.py": "",
    "geartrain_edge/settings.py": "",
    "geartrain_edge/spool/__init__.py": "",
    "geartrain_edge/spool/spool.py": "from geartrain_edge.settings import X",
    "geartrain_edge/uplink/__init__.py": "",
    "geartrain_edge/uplink/uplink.py": "from geartrain_edge.spool.spool import Spool",
}


def tree(**more: str) -> list[Source]:
    files = TREE | {f"geartrain_edge/{name.replace('__', '/')}.py": text for name, text in more.items()}
    return [Source(Path("edge") / path, text) for path, text in files.items()]


def test_imports_of_what_lies_below_pass() -> None:
    assert list(wrong_imports(tree())) == []


@pytest.mark.parametrize(
    "text",
    [
        "from geartrain_edge.uplink.uplink import Uplink",
        "from geartrain_edge.uplink import uplink",
        "import geartrain_edge.uplink",
        "def f():\n    from geartrain_edge.uplink.uplink import Uplink",
        "if TYPE_CHECKING:\n    from geartrain_edge.uplink.uplink import Uplink",
    ],
)
def test_an_import_that_goes_up_is_found(text: str) -> None:
    [found] = wrong_imports(tree(spool__seal=text))
    assert "spool may not import uplink" in found


def test_an_import_within_a_layer_and_an_unknown_package_are_found() -> None:
    sideways = tree(sources__intake="from geartrain_edge.uplink.uplink import Uplink")
    assert "sources may not import uplink" in next(wrong_imports(sideways))
    unknown = tree(drawer__odd="")
    assert "package drawer stands in no layer" in next(wrong_imports(unknown))


@pytest.mark.parametrize("part", LAYERS)
def test_the_map_names_no_package_that_does_not_exist(part: str) -> None:
    folders = {path.parent.name for path in (ROOT / FOLDERS[part] / part).glob("*/__init__.py")}
    assert layers_of(part).keys() - {"."} == folders


def test_the_page_of_the_architecture_shows_the_map() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for part, layers in LAYERS.items():
        for number, packages in enumerate(layers, 1):
            named = " · ".join(part if package == "." else f"{package}/" for package in packages)
            assert f"{number}. {named}" in page, f"{part}: {named}"


FOLDERS = {
    "geartrain": "protocol",
    "geartrain_edge": "edge",
    "geartrain_client": "client",
    "geartrain_cloud": "cloud",
    "geartrain_simulation": "simulation",
}
