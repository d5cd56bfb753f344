"""The flow of a folder with a `pyproject.toml`: the one that this names, else the only one in its package.

Before a flow is loaded. Guarantees: the answer is `module:flow`, and the module is found on `sys.path`;
whatever is missing or too much is one sentence. What is named is not loaded here.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from geartrain.adapters.configuration import read_toml
from geartrain.bundle import PROJECT, project_of
from geartrain.errors import ConfigError
from geartrain.flow.flow import Flow
from geartrain.flow.loading import import_module_of

SHOWN_MAX = 5
_GIVE = "give MODULE:FLOW, or the folder of a project"
_NAMED = 'name it in pyproject.toml: [tool.geartrain] flow = "module:flow"'


def flow_of(given: str, *, loads: bool = True) -> str:
    """`module:flow` of what a person gave: that, or a folder.

    loads: whether modules may be loaded to find a flow that is not named. Raises `ConfigError`.
    """
    folder = Path(given)
    if ":" in given:
        return given
    if folder.is_file():
        raise ConfigError(f"flow {given}: that is a file: {_GIVE}")
    if not folder.is_dir() and os.sep in given:
        raise ConfigError(f"folder {given}: there is no such folder: {_GIVE}")
    if not folder.is_dir():
        return given
    if not (folder / PROJECT).is_file():
        raise ConfigError(f"folder {given}: it has no {PROJECT}: {_GIVE}")
    content = read_toml(folder / PROJECT)
    root = folder / "src" if (folder / "src").is_dir() else folder
    if (path := str(root.resolve())) not in sys.path:
        sys.path.append(path)
    project = project_of(root)
    if named := "" if project is None else project[1].flow:
        if ":" not in named:
            raise ConfigError(f'{folder / PROJECT}: tool.geartrain.flow: write "module:flow", not {named!r}')
        return named
    if not loads:
        raise ConfigError(f"folder {given}: --unchecked loads nothing to find its flow: {_NAMED}")
    found = _flows_in(_package(given, root, content), given)
    if len(found) == 1:
        return found[0]
    has = f"it has {len(found)} flows ({', '.join(found[:SHOWN_MAX])})" if found else "it has no flow"
    raise ConfigError(f"folder {given}: {has}: {_NAMED}")


def _table(content: Any, key: str) -> dict[str, Any]:
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def _package(given: str, root: Path, project: dict[str, Any]) -> str:
    """The package of a project: of its name, else the only one there is."""
    name = re.sub(r"[-.]+", "_", str(_table(project, "project").get("name", "")))
    packages = sorted(path.parent.name for path in root.glob("*/__init__.py") if path.parent.name != "tests")
    if name in packages:
        return name
    if len(packages) == 1:
        return packages[0]
    has = f"{len(packages)} packages" if packages else "no package"
    raise ConfigError(f"folder {given}: it has {has}, and none of the project's name: {_NAMED}")


def _flows_in(package: str, given: str) -> list[str]:
    """`module:flow` of each flow that the modules of a package hold, once, where it is first found."""
    found: dict[int, str] = {}
    top = import_module_of(package, given)
    names = [package, *(one.name for one in pkgutil.walk_packages(top.__path__, f"{package}."))]
    for name in sorted(names, key=lambda name: (-name.count("."), name)):  # where it is made, not passed on
        if name.rpartition(".")[2] == "__main__":
            continue
        for attribute, value in sorted(vars(import_module_of(name, given)).items()):
            if isinstance(value, Flow):
                found.setdefault(id(value), f"{name}:{attribute}")
    return sorted(found.values())
